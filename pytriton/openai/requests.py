"""The requests that are passed to callables, in the same form for all routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import msgspec

from pytriton.openai.bodies import ChatBody, CompletionBody, MessageBody, ResponsesBody, read_body
from pytriton.openai.errors import APIError
from pytriton.openai.parts import Part, part_of

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "Message",
    "Part",
    "chat_request",
    "completion_request",
    "single_choice",
]

#: Maximum number of choices of a request. Each one is buffered while the others are generated.
MAX_ANSWERS = 2048


@dataclass(frozen=True)
class Message:
    """One message of a chat.

    Attributes:
        role: "system", "developer", "user", "assistant", "tool" or "function"
        parts: the content: texts, images, audio, files
        name: name of the author, if given
        tool_calls: tool calls made by the assistant, as sent
        tool_call_id: ID of the tool call whose result a message of role "tool" contains
        raw: the message as sent
    """

    role: str
    parts: tuple[Part, ...] = ()
    name: str | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    tool_call_id: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def text(self) -> str:
        """The texts of all parts, joined."""
        return "".join(part.text for part in self.parts)


@dataclass(frozen=True)
class _Request:
    """The attributes common to all requests.

    Attributes:
        api: the route: "chat", "completions" or "responses"
        id: ID of the response
        model: name of the model as sent by the client
        stream: whether the client requested a stream. The callable may yield pieces in both cases
        stop: texts at which generation stops. The callable has to apply this option and all following ones
        max_tokens: maximum number of tokens in the response
        temperature, top_p, seed, presence_penalty, frequency_penalty, logit_bias: sampling options
        n: number of choices. `Delta.index` assigns a piece to a choice. If a choice has received no piece, the
            callable is called again with a request for that choice alone
        user: ID of the end user, as sent by the client
        extra: fields that are not part of OpenAI's API, as sent
        body: the complete request as sent
    """

    api: str
    id: str = ""
    model: str = ""
    stream: bool = False
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[str, float] | None = None
    n: int = 1
    user: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class ChatRequest(_Request):
    """A request to `/v1/chat/completions` or `/v1/responses`.

    Attributes:
        messages: the conversation so far
        tools: functions that the model may call, in the format of chat completions
        tool_choice: "none", "auto", "required", or the tool to be called
        parallel_tool_calls: whether the model may make several calls at once
        response_format: `{"type": "json_schema", "json_schema": {...}}`, `{"type": "json_object"}`, or None
        logprobs: whether log-probabilities are requested
        top_logprobs: number of alternatives with log-probabilities
        reasoning_effort: "low", "medium", "high" ...
    """

    messages: tuple[Message, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    response_format: Mapping[str, Any] | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    reasoning_effort: str | None = None


@dataclass(frozen=True)
class CompletionRequest(_Request):
    """A request to `/v1/completions`. Several prompts are combined in one request with several choices.

    If a callable completes only `prompt`, it is called again for each of the other prompts.

    Attributes:
        prompt: the first prompt: a text or token IDs
        prompts: all prompts. Choice `i * n + k` is the k-th completion of prompt i
        suffix: text after the completion
        echo: whether the response begins with the prompt
        logprobs: number of alternatives with log-probabilities
    """

    prompts: tuple[str | list[int], ...] = ("",)
    suffix: str | None = None
    echo: bool = False
    logprobs: int | None = None

    @property
    def prompt(self) -> str | list[int]:
        """The first prompt: a text or token IDs."""
        return self.prompts[0]


def single_choice(
    request: ChatRequest | CompletionRequest, index: int
) -> ChatRequest | CompletionRequest:
    """Return a copy of a request that asks only for the choice with this index."""
    body = {**request.body, "n": 1}
    if isinstance(request, ChatRequest):
        return replace(request, n=1, body=body)
    prompt = request.prompts[index // request.n]
    return replace(request, n=1, prompts=(prompt,), body={**body, "prompt": prompt})


def chat_request(api: str, document: dict[str, Any], request_id: str = "") -> ChatRequest:
    """Create the request for a body sent to `/v1/chat/completions` ("chat") or `/v1/responses` ("responses").

    Raises:
        APIError: the body is invalid
    """
    if api == "responses":
        return _of_responses(document, request_id)
    body = read_body(document, ChatBody)
    messages = [
        message_of(message, raw, f"messages[{index}]")
        for index, (message, raw) in enumerate(zip(body.messages, document["messages"]))
    ]
    return ChatRequest(
        **_common(body, document, "chat", request_id),
        messages=tuple(messages),
        tools=tuple(document.get("tools") or ()),
        tool_choice=body.tool_choice,
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=document.get("response_format"),
        logprobs=bool(body.logprobs),
        top_logprobs=body.top_logprobs,
        reasoning_effort=body.reasoning_effort,
    )


def completion_request(document: dict[str, Any], request_id: str = "") -> CompletionRequest:
    """Create the request for a body sent to `/v1/completions`.

    Raises:
        APIError: the body is invalid
    """
    body = read_body(document, CompletionBody)
    prompts = prompts_of(body.prompt, "prompt")
    answers = len(prompts) * (body.n or 1)
    if answers > MAX_ANSWERS:
        raise APIError(
            f"'prompt' and 'n' together ask for {answers} choices; at most {MAX_ANSWERS} are allowed.",
            param="prompt" if len(prompts) > 1 else "n",
            code="invalid_value",
        )
    return CompletionRequest(
        **_common(body, document, "completions", request_id),
        prompts=prompts,
        suffix=body.suffix,
        echo=bool(body.echo),
        logprobs=body.logprobs,
    )


def prompts_of(given: Any, place: str) -> tuple[str | list[int], ...]:
    """Return the prompts, or the texts to embed, as a tuple. The API allows four forms.

    Raises:
        APIError: the value has none of these forms, or mixes them
    """
    if isinstance(given, str):
        return (given,)
    if given and all(isinstance(one, int) for one in given):
        return (cast("list[int]", given),)
    if not given or any(isinstance(one, int) or one == [] for one in given):
        raise APIError(
            f"'{place}' must be a string, a list of strings, a list of token ids, or a list of such lists.",
            param=place,
            code="invalid_value",
        )
    return tuple(given)


def message_of(
    body: MessageBody,
    raw: Mapping[str, Any],
    place: str,
    calls: tuple[Mapping[str, Any], ...] | None = None,
) -> Message:
    """Parse a message and its parts. `calls` are tool calls that are not part of the message.

    Raises:
        APIError: a part is invalid
    """
    content = body.content
    parts: Sequence[Part] = ()
    if isinstance(content, str):
        parts = [Part("text", text=content)]
    elif content is not None:
        parts = [part_of(part, f"{place}.content[{index}]") for index, part in enumerate(content)]
    return Message(
        body.role,
        tuple(parts),
        name=body.name,
        tool_calls=tuple(raw.get("tool_calls") or ()) if calls is None else calls,
        tool_call_id=body.tool_call_id,
        raw=raw,
    )


def unknown_fields(document: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """Return the fields of a request that are not part of OpenAI's API."""
    return {name: value for name, value in document.items() if name not in kind.__struct_fields__}


def _common(
    body: ChatBody | CompletionBody, document: dict[str, Any], api: str, request_id: str
) -> dict[str, Any]:
    stop = body.stop
    longest = body.max_tokens
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        longest = body.max_completion_tokens
    return {
        "api": api,
        "id": request_id,
        "model": body.model,
        "stream": bool(body.stream),
        # An empty text occurs everywhere and would break searches for it.
        "stop": tuple(filter(None, (stop,) if isinstance(stop, str) else stop or ())),
        "max_tokens": longest,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "seed": body.seed,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "logit_bias": body.logit_bias,
        "n": body.n or 1,
        "user": body.user,
        "extra": unknown_fields(document, type(body)),
        "body": document,
    }


# ── `/v1/responses`: items become messages, tool calls and their results ─────────────────────────────


#: Items that a model has generated earlier and that are meaningless to another model.
_SKIPPED = ("reasoning",)
#: Fields that refer to data stored on OpenAI's servers. Ignoring them would continue another conversation.
_KEPT_ELSEWHERE = ("previous_response_id", "conversation")


def _of_responses(document: dict[str, Any], request_id: str) -> ChatRequest:
    """Create the chat request for a body sent to `/v1/responses`.

    Raises:
        APIError: the body is invalid, or refers to data stored on OpenAI's servers
    """
    body = read_body(document, ResponsesBody)
    unsupported = [name for name in _KEPT_ELSEWHERE if document.get(name) is not None]
    if isinstance(document.get("prompt"), Mapping):
        # A prompt that is stored at OpenAI, with its variables.
        unsupported.append("prompt")
    if unsupported or body.background:
        raise _not_kept(unsupported[0] if unsupported else "background")
    messages: list[Message] = []
    if body.instructions is not None:
        raw = {"role": "system", "content": body.instructions}
        messages.append(message_of(MessageBody("system", body.instructions), raw, "instructions"))
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    for index, item in enumerate(items):
        message = _message(item, f"input[{index}]")
        if message is not None:
            messages.append(message)
    if not messages:
        raise APIError("'input' contains no message.", param="input", code="invalid_value")
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
        "('store': false makes some clients do so).",
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
            f"'{place}' has the type {kind!r:.100}, which is not supported.",
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


def _tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert a tool to the format of chat completions."""
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
