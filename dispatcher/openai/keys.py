"""API keys with their models and quotas per minute, read from a file and reloaded when it changes."""

from __future__ import annotations

import hashlib
import hmac
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import msgspec
from msgspec import Meta

from pytriton.openai.bodies import (
    Body,
    ChatBody,
    CompletionBody,
    EmbeddingsBody,
    ResponsesBody,
    TensorsBody,
)
from pytriton.openai.errors import APIError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["KeyFile", "KeyOwner", "KeysError", "TokenReservation", "tokens_of"]

#: Interval between checks of the file.
_POLL_INTERVAL_S = 1.0
_MINUTE_S = 60.0
#: Estimated tokens of a request that does not limit its answer: initial value, and weight of the latest request.
_FIRST_GUESS, _LAST_COUNTS = 256.0, 0.2
_PerMinute = Annotated[int, Meta(ge=1)]
_Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class KeysError(Exception):
    """The keys file is invalid; the text says where and why, without showing a key."""


class KeyEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[key]]` table of the file, with the key itself or its SHA-256."""

    name: Annotated[str, Meta(min_length=1)]
    key: Optional[Annotated[str, Meta(min_length=16)]] = None
    sha256: Optional[_Digest] = None
    models: Optional[tuple[str, ...]] = None
    requests_per_minute: Optional[_PerMinute] = None
    tokens_per_minute: Optional[_PerMinute] = None

    def digest(self) -> bytes:
        """Return the SHA-256 of the key."""
        if self.key is not None:
            return hashlib.sha256(self.key.encode()).digest()
        return bytes.fromhex(self.sha256 or "")


class Bucket:
    """A token bucket that refills completely within a minute.

    Attributes:
        reserved: part reserved for requests in progress
    """

    def __init__(self, size: int, clock: Callable[[], float]) -> None:
        self.size = size
        self.reserved = 0
        self._clock = clock
        self._level = float(size)
        self._at = clock()

    @property
    def level(self) -> float:
        """The current level; below 0 if an answer used more than was left."""
        now = self._clock()
        self._level = min(self.size, self._level + (now - self._at) * self.size / _MINUTE_S)
        self._at = now
        return self._level

    def take(self, amount: float) -> None:
        """Take an amount, even if the bucket does not have it."""
        self._level = self.level - amount

    @property
    def free(self) -> float:
        """The part of the level that is not reserved."""
        return self.level - self.reserved

    def wait_s(self, amount: float) -> float:
        """Return the seconds until the amount is free, if all reservations are used up."""
        return max(0.0, (amount - self.free) * _MINUTE_S / self.size)


class KeyOwner:
    """The owner of a key, with the state of its quotas."""

    def __init__(self, entry: KeyEntry, clock: Callable[[], float]) -> None:
        self.entry = entry
        self._requests = entry.requests_per_minute and Bucket(entry.requests_per_minute, clock)
        self._tokens = entry.tokens_per_minute and Bucket(entry.tokens_per_minute, clock)
        self._typical = _FIRST_GUESS

    def may_use(self, model: str) -> bool:
        """Return whether the key permits a model."""
        return self.entry.models is None or model in self.entry.models

    def admit(self, tokens_of: Callable[[int], int]) -> TokenReservation:
        """Count a request and reserve the tokens that it may use until it is answered.

        A request that may exceed the whole quota is admitted as long as some of it is left.

        Args:
            tokens_of: returns the number of tokens it may use, given the typical number

        Raises:
            APIError: a quota is used up, or the rest of it is reserved
        """
        for what, bucket, amount in (("requests", self._requests, 1), ("tokens", self._tokens, 1)):
            wait_s = bucket.wait_s(amount) if bucket else 0.0
            if bucket and wait_s > 0:
                others = (
                    f", of which {bucket.reserved} are reserved for requests in progress"
                    if bucket.reserved
                    else ""
                )
                raise APIError(
                    f"Rate limit reached: {bucket.size} {what} per minute{others}. Try again in {wait_s:.1f} s.",
                    429,
                    type=what,
                    code="rate_limit_exceeded",
                    retry_after_s=wait_s,
                )
        if self._requests:
            self._requests.take(1)
        if not self._tokens:
            return TokenReservation(self, 0)
        reserved = min(max(1, tokens_of(round(self._typical))), self._tokens.size)
        self._tokens.reserved += reserved
        return TokenReservation(self, reserved)

    def release(self, reserved: int) -> None:
        """Release reserved tokens."""
        if self._tokens:
            self._tokens.reserved -= reserved

    def used(self, tokens: int) -> None:
        """Count the tokens of an answer."""
        if self._tokens:
            self._tokens.take(tokens)
            if tokens:
                self._typical += _LAST_COUNTS * (tokens - self._typical)

    def headers(self) -> dict[str, str]:
        """Return the rate limit headers."""
        found = {}
        for what, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket:
                found[f"x-ratelimit-limit-{what}"] = str(bucket.size)
                found[f"x-ratelimit-remaining-{what}"] = str(max(0, int(bucket.free)))
                found[f"x-ratelimit-reset-{what}"] = f"{bucket.wait_s(bucket.size):.3f}s"
        return found


class TokenReservation:
    """The tokens of a quota that are reserved for a request in progress."""

    def __init__(self, caller: KeyOwner, tokens: int) -> None:
        self._caller: KeyOwner | None = caller
        self._tokens = tokens

    def settle(self, used: int | None) -> None:
        """Replace the reservation by the tokens used; None if no model was used. Only the first call has an effect."""
        caller, self._caller = self._caller, None
        if caller is not None:
            caller.release(self._tokens)
            if used is not None:
                caller.used(used)


class KeyFile:
    """The keys in a file. If a changed file is invalid, the previous keys stay in effect."""

    def __init__(
        self,
        path: Path | None,
        log: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._log = log
        self._clock = clock
        self._stamp: Any = None
        self._checked_at = clock()
        self._callers: list[tuple[bytes, KeyOwner]] = []
        if path is not None:
            self._stamp = _stamp(path)
            self._callers = self._read(path)

    @property
    def wanted(self) -> bool:
        """Whether a key is required."""
        return self._path is not None

    def caller(self, authorization: str) -> KeyOwner | None:
        """Return the owner of the key in an Authorization header; None if no key is required.

        Every key is compared in constant time, so the duration reveals nothing.

        Raises:
            APIError: the key is missing or wrong
        """
        if self._path is None:
            return None
        self._reload_if_changed(self._path)
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key:
            raise APIError(
                "You didn't provide an API key. Send it in the header 'Authorization: Bearer KEY'.", 401,
                type="invalid_request_error", code="missing_api_key",
            )  # fmt: skip
        shown = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
        found = None
        for digest, caller in self._callers:
            if hmac.compare_digest(digest, shown):
                found = caller
        if found is None:
            raise APIError(
                "Incorrect API key provided.",
                401,
                type="invalid_request_error",
                code="invalid_api_key",
            )
        return found

    def _reload_if_changed(self, path: Path) -> None:
        now = self._clock()
        if now - self._checked_at < _POLL_INTERVAL_S:
            return
        self._checked_at = now
        try:
            stamp = _stamp(path)
            if stamp == self._stamp:
                return
            self._stamp = stamp
            self._callers = self._read(path)
        except (KeysError, OSError) as error:
            self._log(f"API keys were not reloaded, the previous ones stay in effect: {error}")

    def _read(self, path: Path) -> list[tuple[bytes, KeyOwner]]:
        """Return the callers in the file; those with an unchanged entry keep the state of their quotas."""
        known = {caller.entry: caller for _, caller in self._callers}
        return [
            (entry.digest(), known.get(entry) or KeyOwner(entry, self._clock))
            for entry in _entries(path)
        ]


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError as error:
        raise KeysError(f"{path}: {error.strerror}") from None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _entries(path: Path) -> list[KeyEntry]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KeysError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        # Invalid TOML or UTF-8; the message of a TOML error contains no values.
        raise KeysError(f"{path} is not TOML in UTF-8: {type(error).__name__}") from None
    try:
        entries = msgspec.convert(document.get("key", []), list[KeyEntry])
    except msgspec.ValidationError as error:
        raise KeysError(f"{path}: {error}") from None
    for entry in entries:
        if (entry.key is None) == (entry.sha256 is None):
            raise KeysError(f"{path}: the key {entry.name!r} needs either `key` or `sha256`")
    unknown = sorted(set(document) - {"key"})
    if unknown:
        raise KeysError(f"{path}: unknown entry {unknown[0]!r}; only [[key]] tables are allowed")
    return entries


# ── Estimates the number of tokens that a request may use, before it is answered ──


#: Average characters per token in English; fewer in other languages. The real tokenizer belongs to the model.
_CHARACTERS = 4
#: Fields with a file in base64, whose number of tokens only the model can tell.
_FILES = ("data", "file_data")


def tokens_of(body: Body | TensorsBody, typical: int) -> int:
    """Return the number of tokens that a request may use: those of its texts plus its maximum answer.

    Args:
        typical: typical usage of a request that does not limit its answer
    """
    if isinstance(body, (EmbeddingsBody, TensorsBody)):
        return _in_texts(body.input if isinstance(body, EmbeddingsBody) else body.inputs[0].data)
    answers, longest, texts = 1, None, 0
    if isinstance(body, ChatBody):
        texts = _in_texts([one.content for one in body.messages])
        answers, longest = body.n or 1, body.max_completion_tokens or body.max_tokens
    elif isinstance(body, CompletionBody):
        texts = _in_texts(body.prompt)
        answers = max(body.n or 1, body.best_of or 1) * _prompts(body.prompt)
        longest = body.max_tokens
    elif isinstance(body, ResponsesBody):
        texts = _in_texts([body.input, body.instructions])
        longest = body.max_output_tokens
    return max(texts, answers * typical) if longest is None else texts + answers * longest


def _prompts(prompt: str | Sequence[Any]) -> int:
    """Return the number of prompts in a request; a list of tokens is one prompt."""
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        return 1
    return max(1, len(prompt))


def _in_texts(content: Any) -> int:
    """Return the approximate number of tokens in the texts; a number is one token."""
    characters, left = 0, [content]
    while left:
        one = left.pop()
        if isinstance(one, str):
            characters += 0 if one.startswith("data:") else len(one)
        elif isinstance(one, int):
            characters += _CHARACTERS
        elif isinstance(one, Mapping):
            left.extend(value for name, value in one.items() if name not in _FILES)
        elif isinstance(one, list):
            left.extend(one)
    return -(-characters // _CHARACTERS)
