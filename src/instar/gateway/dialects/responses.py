"""OpenAI Responses: the body a client sends, and the bytes it gets back.

A conversation is a list of items. Reasoning, message and call items that follow each other are
one reply here. `previous_response_id` goes on from a recorded turn, whatever `store` said: the
record is what instar learns from, and its owner can forget it.

Tools: `function` tools are the model's; `custom` ones are shown to it as a function with one text,
and those of a `namespace` under its name. Others are run by OpenAI's servers: the model is not
told of them, so it never calls them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field

from instar.errors import RequestError
from instar.gateway.call import Call, Step
from instar.gateway.dialects.responses_events import PREFIX, ResponsesWriter
from instar.gateway.dialects.shared import (
    NOT_DRAWN,
    Desk,
    Dialect,
    Extra,
    Refused,
    SharedBody,
    image_part,
    no_such_part,
    openai_error,
    other_names,
    read_body,
    unsupported,
)
from instar.types import Delta, Message, Tool


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None


class _Item(BaseModel):
    model_config = ConfigDict(strict=True)

    type: str | None = None
    role: str | None = None
    content: str | list[_Part] | None = None
    summary: list[_Part] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[_Part] | None = None


class _OwnTool(BaseModel):
    model_config = ConfigDict(strict=True)

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(_OwnTool):
    tools: list[_OwnTool] | None = None
    """Of a namespace."""


class _Reasoning(BaseModel):
    model_config = ConfigDict(strict=True)

    effort: str | None = None


class ResponsesBody(SharedBody):
    """What is read of a request; other fields are ignored or refused by name."""

    input: str | Annotated[list[_Item], Field(min_length=1)]
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[_Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    reasoning: _Reasoning | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None


REFUSED: Refused = {
    **NOT_DRAWN,
    **other_names(ResponsesBody),
    "background": bool,
    "conversation": lambda v: v is not None,
    "prompt": lambda v: v is not None,
    "top_logprobs": bool,
    "include": lambda v: isinstance(v, list) and "message.output_text.logprobs" in v,
    "text": lambda v: isinstance(v, dict) and v.get("format") not in (None, {"type": "text"}),
}


def parse(raw: Mapping[str, Any]) -> Call:
    """A Call, or a RequestError that names the field."""
    body = read_body(ResponsesBody, raw, REFUSED)
    tools, kinds = _tools(body)
    reasoning = body.reasoning or _Reasoning()
    return Call(
        **body.sampling(),
        messages=tuple(_messages(body)),
        tools=tools,
        max_tokens=body.max_output_tokens,
        one_call=body.parallel_tool_calls is False,
        after=_turn_id(body.previous_response_id),
        options=body.options(reasoning_effort=reasoning.effort),
        body_hints=body.hints(),
        kept={
            "kinds": kinds,
            "said": {
                "instructions": body.instructions,
                "max_output_tokens": body.max_output_tokens,
                "metadata": body.metadata or {},
                "parallel_tool_calls": body.parallel_tool_calls is not False,
                "previous_response_id": body.previous_response_id,
                "reasoning": {"effort": reasoning.effort, "summary": None},
                "store": body.store is not False,
                "temperature": body.temperature,
                "tool_choice": body.tool_choice or "auto",
                "tools": raw.get("tools") or [],
                "top_p": body.top_p,
            },
        },
    )


def _turn_id(given: str | None) -> str | None:
    return None if given is None else given.removeprefix(PREFIX)


def _messages(body: ResponsesBody) -> list[Message]:
    """Instructions are the only message with the role system: the next call may replace them."""
    out: list[Message] = []
    if body.instructions:
        out.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*out, {"role": "user", "content": body.input}]
    reply: Message | None = None
    for at, item in enumerate(body.input):
        where = f"input[{at}]"
        kind = item.type or ("message" if item.role else "")
        if kind in _REPLY_ITEMS or (kind == "message" and item.role == "assistant"):
            if reply is None:
                reply = {"role": "assistant", "content": None}
                out.append(reply)
            _add_to_reply(reply, where, kind, item)
            continue
        reply = None
        out.append(_other(where, kind, item))
    for message in out:
        if message["role"] == "assistant" and not message.get("tool_calls"):
            message["content"] = message["content"] or ""
    return out


_REPLY_ITEMS = frozenset({"reasoning", "function_call", "custom_tool_call"})
_RESULT_ITEMS = frozenset({"function_call_output", "custom_tool_call_output"})
_ROLES = {"user": "user", "system": "developer", "developer": "developer"}


def _add_to_reply(reply: Message, where: str, kind: str, item: _Item) -> None:
    if kind == "message":
        parts = _content(where, item.content)
        if not isinstance(parts, str):
            if any(part["type"] != "text" for part in parts):
                raise no_such_part(where, "input_image")
            parts = "".join(part["text"] for part in parts)
        reply["content"] = (reply["content"] or "") + parts
    elif kind == "reasoning":
        shown = item.content if isinstance(item.content, list) else item.summary
        text = "".join(part.text or "" for part in shown or ())
        if text:
            reply["reasoning_content"] = reply.get("reasoning_content", "") + text
    else:
        reply.setdefault("tool_calls", []).append(_call(where, kind, item))


def _call(where: str, kind: str, item: _Item) -> dict[str, Any]:
    if not item.call_id or not item.name:
        raise RequestError(
            f"{where} is a call without a {'name' if item.call_id else 'call_id'}", param=where
        )
    if kind == "custom_tool_call":
        arguments = orjson.dumps({"input": item.input or ""}).decode()
    else:
        arguments = item.arguments or "{}"
    function = {"name": _full_name(item.namespace, item.name), "arguments": arguments}
    return {"id": item.call_id, "type": "function", "function": function}


def _other(where: str, kind: str, item: _Item) -> Message:
    if kind in _RESULT_ITEMS:
        if not item.call_id:
            raise RequestError(
                f"{where} is a result without a call_id; it must name the call it answers.",
                param=where,
                code="tool_call_unknown",
            )
        content = _content(where, item.output)
        return {"role": "tool", "tool_call_id": item.call_id, "content": content}
    if kind == "message" and item.role in _ROLES:
        return {"role": _ROLES[item.role], "content": _content(where, item.content)}
    found = f"the role {item.role[:40]!r}" if kind == "message" and item.role else repr(kind[:40])
    raise RequestError(
        f"{where} is an item of {found}, which is not known here. Known are messages (user, "
        "assistant, system, developer), reasoning, function_call, custom_tool_call and their "
        "outputs. Without it the conversation would be another one, so it is not left out.",
        param=where,
        code="unsupported_content",
    )


def _content(where: str, content: str | list[_Part] | None) -> str | list[dict[str, Any]]:
    if content is None or isinstance(content, str):
        return content or ""
    parts = [_part(where, part) for part in content]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return str(parts[0]["text"])
    return parts


def _part(where: str, part: _Part) -> dict[str, Any]:
    if part.type in ("input_text", "output_text", "text") and part.text is not None:
        return {"type": "text", "text": part.text}
    if part.type == "refusal" and part.refusal is not None:
        return {"type": "text", "text": part.refusal}
    if part.type == "input_image" and part.image_url is not None:
        return image_part(part.image_url)
    raise no_such_part(f"{where}.content", part.type)


def _tools(body: ResponsesBody) -> tuple[tuple[Tool, ...], dict[str, tuple[str, str | None, str]]]:
    """The model's tools, and per name of one: kind, namespace and own name."""
    if body.tool_choice not in (None, "auto", "none"):
        raise unsupported("tool_choice", body.tool_choice, "Send auto or none.")
    if body.tool_choice == "none":
        return (), {}
    tools, kinds = [], {}
    for at, (space, tool) in enumerate(_each_tool(body.tools or ())):
        if not tool.name:
            raise RequestError(f"tools[{at}] has no name", param=f"tools[{at}].name")
        name = _full_name(space, tool.name)
        kinds[name] = (tool.type, space, tool.name)
        function: dict[str, Any] = {"name": name}
        if tool.description:
            function["description"] = tool.description
        if tool.type == "custom":
            function["parameters"] = _CUSTOM
        elif tool.parameters is not None:
            function["parameters"] = tool.parameters
        tools.append({"type": "function", "function": function})
    return tuple(tools), kinds


_CUSTOM: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}


def _each_tool(tools: Sequence[_Tool]) -> Iterator[tuple[str | None, _OwnTool]]:
    """With the namespace of each that has one."""
    for tool in tools:
        inner = tool.tools or () if tool.type == "namespace" else (tool,)
        space = tool.name if tool.type == "namespace" else None
        yield from ((space, one) for one in inner if one.type in ("function", "custom"))


def _full_name(space: str | None, name: str) -> str:
    return f"{space}.{name}" if space else name


async def _retrieve(desk: Desk, owner: str, given: dict[str, Any]) -> dict[str, Any]:
    turn = await desk.turn(owner, str(_turn_id(given["response_id"])))
    writer = ResponsesWriter(Call(model=turn.version, messages=()), desk.renderer)
    deltas = [Delta(kind="reasoning", text=turn.reply.get("reasoning_content") or "")]
    deltas.append(Delta(kind="content", text=turn.reply.get("content") or ""))
    shown = [delta for delta in deltas if delta.text]
    calls = turn.reply.get("tool_calls") or ()
    shown += [Delta(kind="tool_call", index=at, call=call) for at, call in enumerate(calls)]
    found: dict[str, Any] = orjson.loads(
        writer.whole([Step(name=turn.id, deltas=shown)], turn, cached=0)
    )
    return {**found, "created_at": int(turn.created)}


RESPONSES = Dialect(
    name="responses",
    path="/v1/responses",
    prefix=PREFIX,
    about="One reply to a conversation of items, streamed or whole.",
    body=ResponsesBody,
    parse=parse,
    writer=ResponsesWriter,
    error_body=openai_error,
    extras=(
        Extra(
            method="GET",
            path="/v1/responses/{response_id}",
            about="A response that was given before.",
            answer=_retrieve,
        ),
    ),
)
