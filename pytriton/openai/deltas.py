"""The values that a callable may yield: a piece of text, or a `Delta` that says more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Optional

import msgspec

__all__ = ["Delta", "ToolCall", "Usage", "deltas_of"]


class Usage(msgspec.Struct, kw_only=True, frozen=True):
    """The tokens of a request and of its answer."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class ToolCall(msgspec.Struct, kw_only=True, frozen=True):
    """A call of a tool, or a piece of one: pieces of the same `index` are put together.

    Args:
        name: of the function; in the first piece
        arguments: JSON, or a piece of it
        index: which of the calls
        id: by default one is made
    """

    name: Optional[str] = None
    arguments: str = ""
    index: int = 0
    id: Optional[str] = None


class Delta(msgspec.Struct, kw_only=True, frozen=True):
    """A piece of an answer. A plain string is `Delta(content=...)`.

    Args:
        content: text
        reasoning: text of a model's reasoning (`reasoning_content`)
        refusal: text that says why the model does not answer
        tool_calls: calls of tools, or pieces of them
        logprobs: of this piece, in OpenAI's form
        finish_reason: "stop", "length", "tool_calls", "content_filter"; by default the first, or the third if
            there were calls
        usage: tokens; by default, each piece counts as one
        index: which of the request's `n` answers it belongs to
    """

    content: Optional[str] = None
    reasoning: Optional[str] = None
    refusal: Optional[str] = None
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: Optional[dict[str, Any]] = None
    finish_reason: Optional[str] = None
    usage: Optional[Usage] = None
    index: int = 0


def deltas_of(piece: Any) -> Iterator[Delta]:
    """Return the deltas in what a callable yielded, or returned.

    That is a string, a `Delta`, or a chunk or body in OpenAI's own form, as a dict or as an object of the
    `openai` package: what other engines and servers answer can be passed on.

    Raises:
        TypeError: it is something else
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
        "a callable behind the OpenAI API yields strings, pytriton.openai.Delta, or chunks in OpenAI's form (dicts "
        f"with `choices`), not {type(piece).__name__}"
    )


def _of_chunk(chunk: Mapping[str, Any]) -> Iterator[Delta]:
    for choice in chunk["choices"] or ():
        said = choice.get("delta") or choice.get("message") or {}
        yield Delta(
            content=said.get("content") if said else choice.get("text"),
            reasoning=said.get("reasoning_content") or said.get("reasoning"),
            refusal=said.get("refusal"),
            tool_calls=tuple(map(_tool_call, range(10_000), said.get("tool_calls") or ())),
            logprobs=choice.get("logprobs"),
            finish_reason=choice.get("finish_reason"),
            index=choice.get("index") or 0,
        )
    if chunk.get("usage"):
        yield Delta(usage=_usage(chunk["usage"]))


def _tool_call(position: int, call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function") or {}
    index = call.get("index")
    return ToolCall(
        name=function.get("name"),
        arguments=function.get("arguments") or "",
        index=position if index is None else index,
        id=call.get("id"),
    )


def _usage(usage: Mapping[str, Any]) -> Usage:
    of_prompt = usage.get("prompt_tokens_details") or {}
    of_completion = usage.get("completion_tokens_details") or {}
    return Usage(
        prompt_tokens=usage.get("prompt_tokens") or 0,
        completion_tokens=usage.get("completion_tokens") or 0,
        cached_tokens=of_prompt.get("cached_tokens") or 0,
        reasoning_tokens=of_completion.get("reasoning_tokens") or 0,
    )
