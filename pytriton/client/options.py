"""The options of a request: `RequestOptions`, parameters and headers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Optional, Union

from pytriton._protocol.arguments import closest_keywords, plain
from pytriton.client.exceptions import PyTritonClientValueError

__all__ = [
    "Headers",
    "Parameters",
    "RequestOptions",
    "as_metadata",
    "check_headers",
    "check_parameters",
]

Value = Union[str, int, bool]
Parameters = Optional[Mapping[str, Value]]
Headers = Optional[Mapping[str, Value]]

#: Parameter reserved by Triton -> the field of RequestOptions that sets it.
_RESERVED = {
    "priority": "priority",
    "timeout": "timeout_s",
    "sequence_id": "sequence_id",
    "sequence_start": "sequence_start",
    "sequence_end": "sequence_end",
}
_RESERVED_PREFIX = "triton_"
#: 64-bit integers, which both protocols transfer exactly. JSON parsers read larger ones as floating-point numbers.
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
#: Headers that delimit a request. Another value would corrupt the next request on the connection.
_OF_THE_CONNECTION = ("connection", "content-length", "transfer-encoding")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
#: The same for gRPC; source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md,
#: "Custom-Metadata"
_METADATA_NAME = re.compile(r"[0-9a-z_.-]+")
_METADATA_VALUE = re.compile(r"[\x20-\x7e]*")


@closest_keywords
@dataclass(frozen=True)
class RequestOptions:
    """Settings of a request that Triton itself interprets.

    Pass them as ``options=`` to `infer_sample` or `infer_batch`.

    Args:
        priority: 1 (the highest) to the model's `priority_levels`; 0: the model's default
        timeout_s: maximum wait in the server's queue, in seconds. Takes effect if the model's `QueuePolicy` has
            `allow_timeout_override` and a longer `default_timeout_microseconds`. To limit the wait for the response,
            use the client's `inference_timeout_s`.
        request_id: ID of the request in logs and traces; None: "0", "1", … for each client
        sequence_id: ID of the sequence that the request belongs to; 0: none
        sequence_start: whether the request is the first of its sequence
        sequence_end: whether the request is the last of its sequence
        requested_outputs: names of the outputs to return; None: all

    Raises:
        PyTritonClientValueError: a field is out of range

    Example:
        >>> client.infer_sample(x, options=RequestOptions(priority=1))      # doctest: +SKIP
    """

    priority: int = 0
    timeout_s: float | None = None
    request_id: str | None = None
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    requested_outputs: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for one in fields(self):
            object.__setattr__(self, one.name, plain(getattr(self, one.name)))
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise _unusable("priority", self.priority, "an integer")
        if not 0 <= self.priority <= _HIGHEST:
            raise _unusable("priority", self.priority, "0 or more, and less than 2**63")
        if self.timeout_s is not None:
            self._check_timeout(self.timeout_s)
        if self.request_id is not None and not _is_text(self.request_id):
            raise _unusable("request_id", self.request_id, "a string of valid Unicode")
        if isinstance(self.sequence_id, bool) or not (
            _is_text(self.sequence_id)
            or (isinstance(self.sequence_id, int) and _LOWEST <= self.sequence_id <= _HIGHEST)
        ):
            raise _unusable(
                "sequence_id",
                self.sequence_id,
                "a 64-bit integer or a string of valid Unicode",
            )
        names = self.requested_outputs
        if names is not None and (
            isinstance(names, str)
            or not isinstance(names, Sequence)
            or not all(_is_text(name) for name in names)
        ):
            raise _unusable("requested_outputs", names, "a list of names")

    def _check_timeout(self, timeout_s: float) -> None:
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)):
            raise _unusable("timeout_s", timeout_s, "a number of seconds")
        if not timeout_s > 0:
            raise _unusable("timeout_s", timeout_s, "more than 0 seconds")
        if not math.isfinite(timeout_s) or timeout_s * 1e6 > _HIGHEST:
            raise _unusable(
                "timeout_s", timeout_s, "less than 2**63 microseconds; None means no limit"
            )

    def as_arguments(self, request_id: str) -> dict[str, Any]:
        """Return the options as arguments of tritonclient's `infer`, with the timeout in µs."""
        return {
            "request_id": request_id if self.request_id is None else self.request_id,
            "priority": self.priority,
            "timeout": None if self.timeout_s is None else max(1, round(self.timeout_s * 1e6)),
            "sequence_id": self.sequence_id,
            "sequence_start": self.sequence_start,
            "sequence_end": self.sequence_end,
        }


def check_parameters(parameters: Parameters) -> dict[str, Value] | None:
    """Validate a request's parameters and return them as a dict for tritonclient.

    Raises:
        PyTritonClientValueError: Triton does not support a name or a value
    """
    if parameters is None:
        return None
    checked = _checked("parameters", parameters)
    for name, value in checked.items():
        if isinstance(value, int) and not _LOWEST <= value <= _HIGHEST:
            raise PyTritonClientValueError(
                f"The parameter {name!r} must be a 64-bit integer, got {value!r}. Send it as a string, or as an "
                f"input."
            )
        if name in _RESERVED:
            raise PyTritonClientValueError(
                f"The parameter {name!r} is reserved by Triton. Set it with "
                f"options=RequestOptions({_RESERVED[name]}=...)."
            )
        if name.startswith(_RESERVED_PREFIX) or name == "binary_data_output":
            raise PyTritonClientValueError(
                f"The parameter name {name!r} is reserved by Triton. Choose a name that is not "
                f"'binary_data_output' and does not begin with {_RESERVED_PREFIX!r}."
            )
    return checked


def check_headers(headers: Headers) -> dict[str, str]:
    """Validate a request's headers and return them as a dict of strings.

    Raises:
        PyTritonClientValueError: a name or a value is not valid in a header
    """
    checked = _checked("headers", {} if headers is None else headers)
    texts = {name: str(value) for name, value in checked.items()}
    for name, value in texts.items():
        if name.lower() in _OF_THE_CONNECTION:
            raise PyTritonClientValueError(f"The header {name!r} is set by the client itself.")
        if not _HEADER_NAME.fullmatch(name):
            raise PyTritonClientValueError(
                f"Header names may contain only letters, digits and !#$%&'*+-.^_`|~, got {name!r}."
            )
        if not _HEADER_VALUE.fullmatch(value):
            raise PyTritonClientValueError(
                f"The header {name!r} contains a character that is not allowed in headers: {value!r}."
            )
    return texts


def as_metadata(headers: Mapping[str, str]) -> dict[str, str]:
    """Convert validated headers to gRPC metadata, with lower-case names.

    Raises:
        PyTritonClientValueError: gRPC does not support a header, although HTTP does
    """
    metadata = {name.lower(): value for name, value in headers.items()}
    for name, value in metadata.items():
        if name.endswith("-bin"):
            raise PyTritonClientValueError(
                f"The header {name!r} cannot be sent over gRPC, where names that end with '-bin' have binary "
                f"values, which Triton does not read. Choose another name."
            )
        if not _METADATA_NAME.fullmatch(name) or name.startswith("grpc-"):
            raise PyTritonClientValueError(
                f"The header {name!r} cannot be sent over gRPC, where names may contain only letters, digits and "
                f"._-, and must not begin with 'grpc-'."
            )
        if not _METADATA_VALUE.fullmatch(value):
            raise PyTritonClientValueError(
                f"The header {name!r} cannot be sent over gRPC, where values may contain only printable ASCII "
                f"characters, got {value!r}. Send the value as a parameter, which may be any string, or as an input."
            )
    return metadata


def _checked(what: str, given: Mapping[str, Value]) -> dict[str, Value]:
    if not isinstance(given, Mapping):
        raise PyTritonClientValueError(f"The {what} must be a dict, got {given!r}.")
    given = {name: plain(value) for name, value in given.items()}
    for name, value in given.items():
        if not _is_text(name):
            raise PyTritonClientValueError(
                f"Names of {what} must be strings of valid Unicode, got {name!r}."
            )
        if not isinstance(value, (str, int, bool)):
            raise PyTritonClientValueError(
                f"Values of {what} must be str, int or bool, got {name!r}: {value!r}. "
                "Send other values as strings, or as inputs."
            )
        if isinstance(value, str) and not _is_text(value):
            raise PyTritonClientValueError(
                f"Strings in {what} must be valid Unicode, got {name!r}: {value!r}."
            )
    return given


def _is_text(value: object) -> bool:
    """Return whether a value is a string that can be encoded. Lone surrogates, as in some file names, cannot."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def _unusable(name: str, value: object, wanted: str) -> PyTritonClientValueError:
    return PyTritonClientValueError(f"RequestOptions: {name} must be {wanted}, got {value!r}.")
