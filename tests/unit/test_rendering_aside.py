"""What takes long to render is rendered beside the loop, which carries everybody's streams."""

from __future__ import annotations

from typing import Any

import pytest

from instar.gateway.call import Call
from instar.gateway.serve import _NEW, _sizes

LONG = "x" * (_NEW + 1)
SAID = {"role": "user", "content": "Hello."}


def calling(arguments: Any) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def new(*messages: dict[str, Any], fresh: bool = True, **more: Any) -> int:
    return _sizes(Call(model="m", messages=messages, **more), fresh=fresh)[1]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": LONG},
        {"role": "user", "content": [{"type": "text", "text": LONG}]},
        calling(LONG),
        calling({"text": LONG}),
    ],
)
def test_a_long_message_counts_wherever_its_text_is(message: dict[str, Any]) -> None:
    assert new(SAID, message) > _NEW >= new(SAID)


def test_long_tools_count_until_they_are_rendered_once() -> None:
    tools = ({"type": "function", "function": {"name": "f", "description": LONG}},)
    assert new(SAID, tools=tools) > _NEW >= new(SAID, tools=tools, fresh=False)
