"""API keys, each with its models and quotas, from a file that is reloaded when it changes."""

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

__all__ = ["KeyFile", "KeyOwner", "KeysError", "TokenReservation", "estimate_tokens"]

#: Interval between checks of the file.
_POLL_INTERVAL_S = 1.0
_MINUTE_S = 60.0
#: Moving average of tokens per request, which estimates requests that set no maximum: start value, and weight of the
#: latest request.
_FIRST_GUESS, _LAST_COUNTS = 256.0, 0.2
_PerMinute = Annotated[int, Meta(ge=1)]
_Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class KeysError(Exception):
    """Raised for an invalid keys file. The message says where and why, and never contains a key."""


class KeyEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `[[key]]` table of the file, with either the key itself or its SHA-256 hash."""

    name: Annotated[str, Meta(min_length=1)]
    key: Optional[Annotated[str, Meta(min_length=16)]] = None
    sha256: Optional[_Digest] = None
    models: Optional[tuple[str, ...]] = None
    requests_per_minute: Optional[_PerMinute] = None
    tokens_per_minute: Optional[_PerMinute] = None

    def digest(self) -> bytes:
        """Return the SHA-256 hash of the key."""
        if self.key is not None:
            return hashlib.sha256(self.key.encode()).digest()
        return bytes.fromhex(self.sha256 or "")


class Bucket:
    """Token bucket (rate limiter) that refills completely within a minute.

    Attributes:
        reserved: amount reserved for requests in progress
    """

    def __init__(self, size: int, clock: Callable[[], float]) -> None:
        self.size = size
        self.reserved = 0
        self._clock = clock
        self._level = float(size)
        self._at = clock()

    @property
    def level(self) -> float:
        """Current level. It is negative if a response used more than the bucket contained."""
        now = self._clock()
        self._level = min(self.size, self._level + (now - self._at) * self.size / _MINUTE_S)
        self._at = now
        return self._level

    def take(self, amount: float) -> None:
        """Subtract an amount, even if that makes the level negative."""
        self._level = self.level - amount

    @property
    def free(self) -> float:
        """Current level minus the reserved amount."""
        return self.level - self.reserved

    def wait_s(self, amount: float) -> float:
        """Return the number of seconds until `amount` is available, assuming that all reserved tokens will be used."""
        return max(0.0, (amount - self.free) * _MINUTE_S / self.size)


class KeyOwner:
    """Owner of an API key, with the current state of its quotas."""

    def __init__(self, entry: KeyEntry, clock: Callable[[], float]) -> None:
        self.entry = entry
        self._requests = entry.requests_per_minute and Bucket(entry.requests_per_minute, clock)
        self._tokens = entry.tokens_per_minute and Bucket(entry.tokens_per_minute, clock)
        self._typical = _FIRST_GUESS

    def may_use(self, model: str) -> bool:
        """Return whether the key gives access to a model."""
        return self.entry.models is None or model in self.entry.models

    def admit(self, tokens_of: Callable[[int], int]) -> TokenReservation:
        """Count a request against the quotas, and reserve the tokens that it may use.

        If a request may use more tokens than the whole quota, it is admitted as long as any tokens are left.

        Args:
            tokens_of: returns the maximum number of tokens of the request, given the average of earlier requests

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
        """Return reserved tokens to the quota."""
        if self._tokens:
            self._tokens.reserved -= reserved

    def record_usage(self, tokens: int) -> None:
        """Charge the tokens that a request used to the quota."""
        if self._tokens:
            self._tokens.take(tokens)
            if tokens:
                self._typical += _LAST_COUNTS * (tokens - self._typical)

    def headers(self) -> dict[str, str]:
        """Return the rate-limit headers of a response: limit, remaining, and time until reset."""
        found = {}
        for what, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket:
                found[f"x-ratelimit-limit-{what}"] = str(bucket.size)
                found[f"x-ratelimit-remaining-{what}"] = str(max(0, int(bucket.free)))
                found[f"x-ratelimit-reset-{what}"] = f"{bucket.wait_s(bucket.size):.3f}s"
        return found


class TokenReservation:
    """Tokens of a quota that are reserved for a request in progress."""

    def __init__(self, caller: KeyOwner, tokens: int) -> None:
        self._caller: KeyOwner | None = caller
        self._tokens = tokens

    def settle(self, used: int | None) -> None:
        """Release the reservation, and charge the tokens that were used (None if the request reached no model).

        Only the first call has an effect.
        """
        caller, self._caller = self._caller, None
        if caller is not None:
            caller.release(self._tokens)
            if used is not None:
                caller.record_usage(used)


class KeyFile:
    """API keys from a file, which is reloaded when it changes. If the new content is invalid, the previous keys stay in
    effect.
    """

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

    def authenticate(self, authorization: str) -> KeyOwner | None:
        """Return the owner of the key in an Authorization header; None if no key is required.

        The key is compared with every known one in constant time, so that the duration reveals nothing about them.

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
        """Read the owners of the keys in the file. An owner whose entry is unchanged keeps the state of its quotas."""
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
        # Invalid TOML or UTF-8. The error's message is left out, since it might quote the file.
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


# ── Estimate of the number of tokens that a request may use, before it is answered ──


#: Average number of characters per token in English; other languages have fewer. Only the model has the real tokenizer.
_CHARACTERS = 4
#: Fields with a base64-encoded file. Only the model knows how many tokens it makes.
_FILES = ("data", "file_data")


def estimate_tokens(body: Body | TensorsBody, typical: int) -> int:
    """Estimate the maximum number of tokens that a request uses: those of its texts, plus those of the longest answer
    it allows.

    Args:
        typical: average number of tokens per answer, for a request without a maximum
    """
    if isinstance(body, (EmbeddingsBody, TensorsBody)):
        return _estimate_in_texts(
            body.input if isinstance(body, EmbeddingsBody) else body.inputs[0].data
        )
    answers, longest, texts = 1, None, 0
    if isinstance(body, ChatBody):
        texts = _estimate_in_texts([one.content for one in body.messages])
        answers, longest = body.n or 1, body.max_completion_tokens or body.max_tokens
    elif isinstance(body, CompletionBody):
        texts = _estimate_in_texts(body.prompt)
        answers = max(body.n or 1, body.best_of or 1) * _count_prompts(body.prompt)
        longest = body.max_tokens
    elif isinstance(body, ResponsesBody):
        texts = _estimate_in_texts([body.input, body.instructions])
        longest = body.max_output_tokens
    return max(texts, answers * typical) if longest is None else texts + answers * longest


def _count_prompts(prompt: str | Sequence[Any]) -> int:
    """Return the number of prompts in a request. A list of tokens is one prompt."""
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        return 1
    return max(1, len(prompt))


def _estimate_in_texts(content: Any) -> int:
    """Estimate the number of tokens in texts, which may be nested. An integer counts as one token."""
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
