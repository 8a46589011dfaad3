"""Conversion of `/v1/responses` bodies to chat requests: items become messages, tool calls and their results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from pytriton.openai.bodies import MessageBody, ResponsesBody, read_body
from pytriton.openai.errors import APIError
from pytriton.openai.requests import ChatRequest, Message, message_of, unknown_fields

__all__ = ["as_chat"]

#: Items generated earlier by a model that are meaningless to another one.
_SKIPPED = ("reasoning",)
#: Fields that refer to data stored on OpenAI's servers. Ignoring them would continue another conversation.
_KEPT_ELSEWHERE = ("previous_response_id", "conversation")


def as_chat(document: dict[str, Any], request_id: str) -> ChatRequest:
    """Return the chat request for a body.

    Raises:
        APIError: the body is invalid, or refers to data stored on OpenAI's servers
    """
    body = read_body(document, ResponsesBody)
    asked = [name for name in _KEPT_ELSEWHERE if document.get(name) is not None]
    if isinstance(document.get("prompt"), Mapping):
        # A prompt stored there, with its variables.
        asked.append("prompt")
    if asked or body.background:
        raise _not_kept(asked[0] if asked else "background")
    messages = [] if body.instructions is None else [_said("system", body.instructions)]
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    for index, item in enumerate(items):
        message = _message(item, f"input[{index}]")
        if message is not None:
            messages.append(message)
    if not messages:
        raise APIError("'input' has no message.", param="input", code="invalid_value")
    return ChatRequest(
        api="responses",
        id=request_id,
        model=body.model,
        stream=bool(body.stream),
        max_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        user=body.user,
        extra=unknown_fields(document, ResponsesBody),
        body=document,
        messages=tuple(messages),
        tools=tuple(_tool(tool) for tool in document.get("tools") or ()),
        tool_choice=_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=_format(document.get("text")),
        top_logprobs=body.top_logprobs,
        reasoning_effort=None if body.reasoning is None else body.reasoning.effort,
    )


def _not_kept(name: str) -> APIError:
    return APIError(
        f"'{name}' is not supported: no responses are stored here. Send the whole conversation in 'input' "
        "('store': false has some clients do so).",
        param=name,
        code="unsupported_parameter",
    )


def _message(item: Mapping[str, Any], place: str) -> Message | None:
    kind = item.get("type", "message")
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments", "")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return _checked({"role": "assistant", "tool_calls": [call]}, item, place, (call,))
    if kind == "function_call_output":
        output = item.get("output", "")
        answer = {"role": "tool", "content": output, "tool_call_id": item.get("call_id")}
        return _checked(answer, item, place)
    if kind in _SKIPPED:
        return None
    if kind == "item_reference":
        raise _not_kept(place)
    if kind != "message":
        raise APIError(
            f"'{place}' is of the type {kind!r:.100}, which is not supported.",
            param=f"{place}.type",
            code="unsupported_value",
        )
    return _checked({name: item[name] for name in ("role", "content") if name in item}, item, place)


def _checked(
    fields: Any,
    raw: Mapping[str, Any],
    place: str,
    calls: tuple[Mapping[str, Any], ...] = (),
) -> Message:
    try:
        body = msgspec.convert(fields, MessageBody)
    except msgspec.ValidationError as error:
        raise APIError(
            f"Invalid value for '{place}': {error}.", param=place, code="invalid_value"
        ) from None
    return message_of(body, raw, place, calls)


def _said(role: str, text: str) -> Message:
    return message_of(MessageBody(role, text), {"role": role, "content": text}, "instructions")  # type: ignore[arg-type]


def _tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a tool in the form of chat completions."""
    if tool.get("type") != "function" or "function" in tool:
        return tool
    return {"type": "function", "function": {name: tool[name] for name in tool if name != "type"}}


def _choice(choice: Any) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "function" and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice


def _format(text: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    form = (text or {}).get("format")
    if not isinstance(form, dict):
        return None
    if form.get("type") != "json_schema":
        return form
    return {
        "type": "json_schema",
        "json_schema": {name: form[name] for name in form if name != "type"},
    }
