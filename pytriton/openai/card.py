"""The card of a model: the OpenAI routes that it serves, and its entry in `/v1/models`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional, Union

import msgspec

from pytriton._protocol.arguments import plain
from pytriton._protocol.messages.model_spec import OpenAICard
from pytriton.exceptions import PyTritonValidationError

__all__ = ["KINDS", "ModelCard", "OpenAI", "card_of"]

#: The routes that a model can serve. Embeddings cannot be combined with others, because they are batched.
KINDS = ("chat", "completions", "responses", "embeddings")

MAX_ALIAS_LENGTH = 200


class ModelCard(msgspec.Struct, frozen=True):
    """The part of the OpenAI API that a model serves, and its public description.

    Args:
        serves: "chat", "completions" or "responses", or a list of several of these; or "embeddings"
        owned_by: value of `owned_by` in `/v1/models`
        context_length: maximum total number of tokens in a request and its response; None: not published
        description: description of the model, for users
        aliases: other IDs under which clients may request the model, such as "meta-llama/Llama-3.1-8B-Instruct" or
            "llama3:8b". Unlike model names, they are not limited to letters, digits, `_`, `-` and `.`

    Raises:
        PyTritonValidationError: a route is unknown, two of them cannot be combined, or another value is invalid
    """

    serves: Union[str, Sequence[str]] = "chat"
    owned_by: str = "pytriton"
    context_length: Optional[int] = None
    description: str = ""
    aliases: Sequence[str] = ()

    def __post_init__(self) -> None:
        _check_kinds(self.kinds)
        length = plain(self.context_length)
        if length is not None and (
            isinstance(length, bool) or not isinstance(length, int) or length < 1
        ):
            raise PyTritonValidationError(
                f"context_length must be a positive integer, got {length!r}."
            )
        _check_aliases(self.aliases)
        for name in ("owned_by", "description"):
            if not isinstance(getattr(self, name), str):
                raise PyTritonValidationError(
                    f"{name} must be a string, got {getattr(self, name)!r}."
                )

    @property
    def kinds(self) -> list[str]:
        """The routes in `serves`, as a list."""
        return [self.serves] if isinstance(self.serves, str) else list(self.serves)

    def to_message(self) -> OpenAICard:
        """Convert the card to the message that is sent to the daemon."""
        return OpenAICard(
            self.kinds, self.owned_by, self.context_length, self.description, list(self.aliases)
        )


#: Types of the option `openai`.
OpenAI = Union[str, Sequence[str], ModelCard]


def card_of(value: Any) -> ModelCard:
    """Convert the value of the option `openai` to a `ModelCard`.

    Raises:
        PyTritonValidationError: the value is invalid
    """
    if isinstance(value, ModelCard):
        return value
    if not isinstance(value, (str, list, tuple)):
        raise PyTritonValidationError(
            f"openai must be one of {_listed()}, a list of them, or a pytriton.openai.ModelCard, got {value!r}."
        )
    return ModelCard(value)


def _check_aliases(aliases: Any) -> None:
    if isinstance(aliases, str) or not isinstance(aliases, Sequence):
        raise PyTritonValidationError(f"aliases must be a list of strings, got {aliases!r}.")
    for one in aliases:
        if not isinstance(one, str) or not one.strip() or not one.isprintable():
            raise PyTritonValidationError(
                f"An alias must be a string of printable characters, got {one!r:.200}."
            )
        if len(one) > MAX_ALIAS_LENGTH:
            raise PyTritonValidationError(
                f"An alias may have at most {MAX_ALIAS_LENGTH} characters, got {len(one)}: {one[:50]!r}..."
            )


def _check_kinds(kinds: list[Any]) -> None:
    unknown = [kind for kind in kinds if not isinstance(kind, str) or kind not in KINDS]
    if unknown or not kinds:
        what = f"got {unknown[0]!r}" if unknown else "got an empty list"
        raise PyTritonValidationError(
            f"openai must be one of {_listed()}, or a list of them, {what}."
        )
    if "embeddings" in kinds and len(kinds) > 1:
        raise PyTritonValidationError(
            "openai='embeddings' cannot be combined with other values, because such a model receives batches of texts "
            "and returns arrays. Register two models."
        )


def _listed() -> str:
    return ", ".join(map(repr, KINDS))
