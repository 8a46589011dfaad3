"""Types and decorators for typed functions: uploaded files, media types, batching."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pytriton._callables import called_function
from pytriton._protocol.routes import check_media_type
from pytriton.exceptions import PyTritonValidationError

__all__ = ["Batching", "MediaType", "UploadFile", "batchable", "batching_of"]

_ATTRIBUTE = "__pytriton_batchable__"
_T = TypeVar("_T", bound=Callable[..., Any])


class UploadFile:
    """A file that a client uploaded. Its content is in memory, so reading it needs no ``await``.

    Args:
        data: its content
        filename: its name on the client's machine, without folders; None if the client sent none. Do not use it as a
            path: a client may send any name
        content_type: its media type, as given by the client

    Example:
        >>> upload = UploadFile(b"a,b", "table.csv", "text/csv")
        >>> upload.size, upload.file.read(1), upload.file.read()
        (3, b'a', b',b')
    """

    __slots__ = ("_file", "content_type", "data", "filename")

    def __init__(
        self,
        data: bytes,
        filename: str | None = None,
        content_type: str = "application/octet-stream",
    ) -> None:
        self.data = data
        self.filename = filename
        self.content_type = content_type
        self._file: io.BytesIO | None = None

    def __repr__(self) -> str:
        return f"UploadFile({self.filename!r}, {self.content_type!r}, {self.size} bytes)"

    @property
    def size(self) -> int:
        """The number of bytes of the content."""
        return len(self.data)

    @property
    def file(self) -> io.BytesIO:
        """The content as a binary file. It is always the same file object: reading continues where the last read ended."""
        if self._file is None:
            self._file = io.BytesIO(self.data)
        return self._file


@dataclass(frozen=True)
class MediaType:
    """The media type of returned bytes: ``-> Annotated[bytes, MediaType("image/png")]``.

    Raises:
        PyTritonValidationError: it is no media type
    """

    value: str

    def __post_init__(self) -> None:
        try:
            check_media_type(self.value)
        except ValueError as error:
            raise PyTritonValidationError(f"MediaType: {error}") from None


@dataclass(frozen=True)
class Batching:
    """How requests to a batchable function are grouped into batches.

    Args:
        max_batch_size: maximum number of requests in a call
        max_delay_s: how long the first request of a batch may wait for others, in seconds
    """

    max_batch_size: int
    max_delay_s: float


def batchable(max_batch_size: int = 32, max_delay_s: float = 0.0) -> Callable[[_T], _T]:
    """Let a typed function process all requests of a batch in one call.

    Every parameter is a list with one item for each request, and so is the return value. An exception in place of a
    result fails only that request; the others get their results.

    Args:
        max_batch_size: maximum number of requests in a call
        max_delay_s: how long the first request of a batch may wait for others, in seconds. With 0, a batch contains the
            requests that queued while the previous batch was running

    Raises:
        PyTritonValidationError: a value is invalid

    Example:
        >>> @batchable(max_batch_size=64)
        ... def lengths(text: list[str]) -> list[int]:
        ...     return [len(one) for one in text]
    """
    if callable(max_batch_size):
        raise PyTritonValidationError("Write @batchable() with parentheses.")
    if (
        isinstance(max_batch_size, bool)
        or not isinstance(max_batch_size, int)
        or max_batch_size < 1
    ):
        raise PyTritonValidationError(
            f"max_batch_size must be a whole number of 1 or more, got {max_batch_size!r}."
        )
    if (
        isinstance(max_delay_s, bool)
        or not isinstance(max_delay_s, (int, float))
        or not 0 <= max_delay_s <= 60
    ):
        raise PyTritonValidationError(
            f"max_delay_s must be a number of seconds from 0 to 60, got {max_delay_s!r}."
        )

    def attach(function: _T) -> _T:
        setattr(function, _ATTRIBUTE, Batching(max_batch_size, float(max_delay_s)))
        return function

    return attach


def batching_of(target: Any) -> Batching | None:
    """Return the options that `@batchable` attached to a function, a method, or a class's ``__call__``; None if
    there are none.
    """
    found = getattr(called_function(target), _ATTRIBUTE, None)
    return found if isinstance(found, Batching) else None
