"""Anthropic Messages: the body a client sends, and the bytes it gets back.

Content comes in blocks. Text, thinking and tool_use blocks of one assistant message are one
reply here; tool_result blocks become tool messages before the text that came with them. Tools
without an `input_schema` (those that Anthropic runs or defines) are left out: the model is not
told of them, so it never calls them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, StrictStr

from instar.errors import RequestError
from instar.gateway.call import Call
from instar.gateway.dialects.anthropic_events import MessagesWriter, error_body
from instar.gateway.dialects.shared import (
    NOT_DRAWN,
    Desk,
    Dialect,
    Extra,
    Refused,
    SharedBody,
    image_part,
    no_such_part,
    other_names,
    read_body,
    unsupported,
)
from instar.types import Message, Tool


class _Source(BaseModel):
    model_config = ConfigDict(strict=True)

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class _Inner(BaseModel):
    """A block within a tool result."""

    model_config = ConfigDict(strict=True)

    type: str
    text: str | None = None
    source: _Source | None = None


class _Block(_Inner):
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[_Inner] | None = None


class _Message(BaseModel):
    model_config = ConfigDict(strict=True)

    role: Literal["user", "assistant", "system"]
    content: str | list[_Block]


class _Tool(BaseModel):
    model_config = ConfigDict(strict=True)

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class _ToolChoice(BaseModel):
    model_config = ConfigDict(strict=True)

    type: str
    disable_parallel_tool_use: bool | None = None


class _Thinking(BaseModel):
    model_config = ConfigDict(strict=True)

    type: str


class _Metadata(BaseModel):
    model_config = ConfigDict(strict=True)

    user_id: str | None = None


class _OutputConfig(BaseModel):
    model_config = ConfigDict(strict=True)

    effort: str | None = None


Stop = Annotated[list[Annotated[StrictStr, Field(min_length=1)]], Field(max_length=16)]


class CountBody(SharedBody):
    """What makes a prompt; other fields are ignored or refused by name."""

    messages: Annotated[list[_Message], Field(min_length=1)]
    system: str | list[_Inner] | None = None
    tools: list[_Tool] | None = None
    tool_choice: _ToolChoice | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None


class MessagesBody(CountBody):
    """What is read of a request."""

    max_tokens: int = Field(ge=1)
    stop_sequences: Stop | None = None
    metadata: _Metadata | None = None


REFUSED: Refused = {
    **NOT_DRAWN,
    **other_names(MessagesBody),
    "mcp_servers": bool,
    "container": lambda v: v is not None,
    "output_config": lambda v: isinstance(v, dict) and v.get("format") is not None,
    "output_format": lambda v: v is not None,
    "thread": lambda v: v is not None,
    "compaction": lambda v: v is not None,
}


def parse(raw: Mapping[str, Any]) -> Call:
    """A Call, or a RequestError that names the field."""
    body = read_body(MessagesBody, raw, REFUSED)
    metadata = body.metadata or _Metadata()
    return Call(
        **_prompt(body),
        max_tokens=body.max_tokens,
        stop=tuple(body.stop_sequences or ()),
        one_call=bool(body.tool_choice and body.tool_choice.disable_parallel_tool_use),
        body_hints=body.hints(**{"metadata.user_id": metadata.user_id}),
    )


def _prompt(body: CountBody) -> dict[str, Any]:
    messages: list[Message] = []
    if body.system:
        messages.append({"role": "system", "content": _inner("system", body.system)})
    for at, message in enumerate(body.messages):
        messages += _read(f"messages[{at}].content", message)
    if messages[-1]["role"] == "assistant":
        raise RequestError(
            "The last message is the assistant's. A reply cannot be begun for the model here; "
            "end with a message of the user.",
            param="messages",
            code="unsupported_parameter",
        )
    thinking = body.thinking.type if body.thinking else None
    effort = body.output_config.effort if body.output_config else None
    return {
        **body.sampling(),
        "messages": tuple(messages),
        "tools": _tools(body),
        "options": body.options(
            enable_thinking={"enabled": True, "disabled": False}.get(thinking or ""),
            reasoning_effort=effort,
        ),
    }


def _read(where: str, message: _Message) -> list[Message]:
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    if message.role == "assistant":
        return [_reply(where, message.content)]
    results = [block for block in message.content if block.type == "tool_result"]
    rest = [block for block in message.content if block.type != "tool_result"]
    out = [_result(where, block) for block in results]
    if rest or not results:
        out.append({"role": message.role, "content": _inner(where, rest)})
    return out


def _reply(where: str, blocks: Sequence[_Block]) -> Message:
    text, thoughts = "", ""
    calls: list[dict[str, Any]] = []
    for block in blocks:
        if block.type == "text" and block.text is not None:
            text += block.text
        elif block.type == "thinking" and block.thinking is not None:
            thoughts += block.thinking
        elif block.type == "tool_use" and block.id and block.name:
            written = orjson.dumps(block.input or {}).decode()
            function = {"name": block.name, "arguments": written}
            calls.append({"id": block.id, "type": "function", "function": function})
        elif block.type != "redacted_thinking":
            raise no_such_part(where, block.type)
    message: Message = {"role": "assistant", "content": text or (None if calls else "")}
    if thoughts:
        message["reasoning_content"] = thoughts
    return message | ({"tool_calls": calls} if calls else {})


def _result(where: str, block: _Block) -> Message:
    if not block.tool_use_id:
        raise RequestError(
            f"{where} has a tool_result without a tool_use_id; it must name the call it answers.",
            param=where,
            code="tool_call_unknown",
        )
    content = _inner(where, block.content) if block.content else ""
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}


def _inner(where: str, content: str | Sequence[_Inner]) -> str | list[dict[str, Any]]:
    """Text where it is one, else parts in the form that the gateway knows."""
    if isinstance(content, str):
        return content
    parts = [_part(where, block) for block in content]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return str(parts[0]["text"])
    return parts


def _part(where: str, block: _Inner) -> dict[str, Any]:
    if block.type == "text" and block.text is not None:
        return {"type": "text", "text": block.text}
    source = block.source
    if block.type == "image" and source is not None:
        if source.type == "base64" and source.data is not None:
            return image_part(f"data:{source.media_type or ''};base64,{source.data}")
        if source.type == "url" and source.url is not None:
            return image_part(source.url)
    raise no_such_part(where, block.type)


def _tools(body: CountBody) -> tuple[Tool, ...]:
    choice = body.tool_choice.type if body.tool_choice else "auto"
    if choice == "none":
        return ()
    known = [tool for tool in body.tools or () if tool.input_schema is not None]
    for at, tool in enumerate(known):
        if not tool.name:
            raise RequestError(f"tools[{at}] has no name", param=f"tools[{at}].name")
    if choice != "auto":
        raise unsupported("tool_choice", choice, "Send auto or none.")
    return tuple(
        {
            "type": "function",
            "function": {
                "name": tool.name,
                **({"description": tool.description} if tool.description else {}),
                "parameters": tool.input_schema,
            },
        }
        for tool in known
    )


async def _count(desk: Desk, owner: str, raw: dict[str, Any]) -> dict[str, Any]:
    call = Call(**_prompt(read_body(CountBody, raw, REFUSED)))
    return {"input_tokens": await desk.count(owner, call)}


MESSAGES = Dialect(
    name="messages",
    path="/v1/messages",
    prefix="msg_",
    about="One reply to a conversation in Anthropic's form, streamed or whole.",
    body=MessagesBody,
    parse=parse,
    writer=MessagesWriter,
    error_body=error_body,
    extras=(
        Extra(
            method="POST",
            path="/v1/messages/count_tokens",
            about="How many tokens the prompt of this conversation has.",
            body=CountBody,
            answer=_count,
        ),
    ),
)
