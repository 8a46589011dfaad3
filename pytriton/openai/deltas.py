"""The values that a callable may yield or return: a string, a `Delta` with more information, or `Embeddings`.

This module must not import numpy, because every program that registers models imports it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import msgspec

from pytriton._protocol.arguments import plain

__all__ = ["Delta", "Embeddings", "ToolCall", "Usage", "deltas_of"]

#: Maximum token count, so that quotas and metrics can add up counts.
_MAX_TOKENS = 2**53


class Usage(msgspec.Struct, kw_only=True, frozen=True):
    """The number of tokens in a request and its response.

    Raises:
        ValueError: a count is negative, too large or not an integer
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    def plus(self, other: Usage) -> Usage:
        """Return the sum of this usage and another one."""
        names = self.__struct_fields__
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def __post_init__(self) -> None:
        """Check that the counts are valid."""
        for name in self.__struct_fields__:
            count = _whole(self, name)
            if not 0 <= count <= _MAX_TOKENS:
                raise ValueError(f"Usage.{name} must be between 0 and {_MAX_TOKENS}, got {count}")


class ToolCall(msgspec.Struct, kw_only=True, frozen=True):
    """A tool call, or a piece of one. Pieces with the same `index` are joined.

    Args:
        name: name of the function; required in the first piece
        arguments: the arguments as JSON, or a piece of this text
        index: number of the call, from 0
        id: ID of the call; default: a generated ID

    Raises:
        TypeError: a value has the wrong type
    """

    name: Optional[str] = None
    arguments: str = ""
    index: int = 0
    id: Optional[str] = None

    def __post_init__(self) -> None:
        """Check the types, so that clients can parse the call."""
        for name in ("name", "id"):
            _text(self, name)
        if self.arguments is None or isinstance(self.arguments, Mapping):
            raise TypeError("ToolCall.arguments must be JSON as a string: json.dumps(arguments)")
        _text(self, "arguments")
        _whole(self, "index")


class Delta(msgspec.Struct, kw_only=True, frozen=True):
    """A piece of a response. A callable may yield a plain string instead of `Delta(content=...)`.

    Args:
        content: text of the response
        reasoning: text of the model's reasoning (`reasoning_content`)
        refusal: explanation of why the model refuses to answer
        tool_calls: tool calls, or pieces of them
        logprobs: log-probabilities of this piece, in OpenAI's format
        finish_reason: "stop", "length", "tool_calls" or "content_filter"; default: "tool_calls" if there are tool
            calls, otherwise "stop"
        usage: number of tokens; by default, each piece counts as one token
        index: index of the choice, for requests with `n` above 1

    Raises:
        TypeError: a value has the wrong type
    """

    content: Optional[str] = None
    reasoning: Optional[str] = None
    refusal: Optional[str] = None
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: Optional[dict[str, Any]] = None
    finish_reason: Optional[str] = None
    usage: Optional[Usage] = None
    index: int = 0

    def __post_init__(self) -> None:
        """Validate the values here, so that the error reaches the callable and not the client's parser."""
        for name in ("content", "reasoning", "refusal", "finish_reason"):
            _text(self, name)
        if type(self.index) is not int:
            _whole(self, "index")
        if not all(isinstance(call, ToolCall) for call in self.tool_calls):
            raise TypeError("Delta.tool_calls must be a tuple of pytriton.openai.ToolCall")
        if self.logprobs is not None and not isinstance(self.logprobs, Mapping):
            raise TypeError(f"Delta.logprobs must be a dict, not {type(self.logprobs).__name__}")
        if self.usage is not None and not isinstance(self.usage, Usage):
            raise TypeError(
                f"Delta.usage must be a pytriton.openai.Usage, not {type(self.usage).__name__}"
            )


def _text(struct: msgspec.Struct, name: str) -> None:
    """Check that a value is None or exactly a str, because the JSON encoder does not accept subclasses."""
    value = getattr(struct, name)
    if value is None or type(value) is str:
        return
    if not isinstance(value, str):
        kind = type(struct).__name__
        raise TypeError(f"{kind}.{name} must be a string, not {type(value).__name__}")
    msgspec.structs.force_setattr(struct, name, str.__str__(value))


def _whole(struct: msgspec.Struct, name: str) -> int:
    """Check that a value is an integer (Python's or numpy's), and return it as an int."""
    value = getattr(struct, name)
    if type(value) is int:
        return value
    number: Any = plain(value)
    if isinstance(number, bool) or not isinstance(number, int):
        kind = type(struct).__name__
        raise TypeError(f"{kind}.{name} must be an integer, not {type(value).__name__}")
    if number is not value:
        msgspec.structs.force_setattr(struct, name, number)
    return int(number)


def deltas_of(piece: Any) -> Iterator[Delta]:
    """Convert to deltas a value that a callable yielded or returned.

    The value is a string, a `Delta`, or a chunk or body in OpenAI's format, as a dict or as an object of the `openai`
    package. This lets a callable pass on the responses of other engines and servers.

    Raises:
        TypeError: the value has another type
    """
    if isinstance(piece, str):
        return iter((Delta(content=piece),))
    if isinstance(piece, Delta):
        return iter((piece,))
    if hasattr(piece, "model_dump"):
        piece = piece.model_dump()
    if isinstance(piece, Mapping) and "choices" in piece:
        return _of_chunk(piece)
    raise TypeError(
        "a callable behind the OpenAI API must yield strings, pytriton.openai.Delta, or chunks in OpenAI's "
        f"format (dicts with `choices`), not {type(piece).__name__}"
    )


def _of_chunk(chunk: Mapping[str, Any]) -> Iterator[Delta]:
    for choice in chunk["choices"] or ():
        message = choice.get("delta") or choice.get("message") or {}
        yield Delta(
            content=_joined(message.get("content") if message else choice.get("text")),
            reasoning=_joined(message.get("reasoning_content") or message.get("reasoning")),
            refusal=message.get("refusal"),
            tool_calls=tuple(map(_tool_call, range(10_000), message.get("tool_calls") or ())),
            logprobs=choice.get("logprobs"),
            finish_reason=choice.get("finish_reason"),
            index=choice.get("index") or 0,
        )
    if chunk.get("usage"):
        yield Delta(usage=_usage(chunk["usage"]))


def _joined(content: Any) -> Any:
    """Return the content of a message as a string. Some servers send it as a list of parts."""
    if not isinstance(content, list):
        return content
    texts = (part.get("text") for part in content if isinstance(part, Mapping))
    return "".join(text for text in texts if isinstance(text, str))


def _tool_call(position: int, call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function") or {}
    arguments = function.get("arguments") or ""
    index = call.get("index")
    return ToolCall(
        name=function.get("name"),
        # Some servers send the object itself.
        arguments=arguments
        if isinstance(arguments, str)
        else msgspec.json.encode(arguments).decode(),
        index=position if index is None else index,
        id=call.get("id"),
    )


def _usage(usage: Mapping[str, Any]) -> Usage:
    of_prompt = usage.get("prompt_tokens_details") or {}
    of_completion = usage.get("completion_tokens_details") or {}
    return Usage(
        prompt_tokens=_valid_count(usage.get("prompt_tokens")),
        completion_tokens=_valid_count(usage.get("completion_tokens")),
        cached_tokens=_valid_count(of_prompt.get("cached_tokens")),
        reasoning_tokens=_valid_count(of_completion.get("reasoning_tokens")),
    )


def _valid_count(count: Any) -> int:
    """Return another server's count. If the count is invalid, return 0, so that the response is still passed on."""
    if isinstance(count, bool) or not isinstance(count, (int, float)) or not math.isfinite(count):
        return 0
    return min(max(0, int(count)), _MAX_TOKENS)


@dataclass(frozen=True)
class Embeddings:
    """The result of an embedding callable. Return it instead of an array to report the number of tokens.

    Args:
        vectors: array with a row for each text
        prompt_tokens: number of tokens of each text
    """

    vectors: Any
    prompt_tokens: Sequence[int]
