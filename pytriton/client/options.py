"""The options of a request: settings for Triton, parameters and headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Optional, Union

from pytriton.client.exceptions import PyTritonClientValueError
from pytriton.ipc.scalars import plain

__all__ = ["Headers", "Parameters", "RequestOptions", "check_headers", "check_parameters"]

Value = Union[str, int, bool]
Parameters = Optional[Mapping[str, Value]]
Headers = Optional[Mapping[str, Value]]

#: Parameter that Triton keeps for itself -> the field of RequestOptions that sets it.
_RESERVED = {
    "priority": "priority",
    "timeout": "timeout_s",
    "sequence_id": "sequence_id",
    "sequence_start": "sequence_start",
    "sequence_end": "sequence_end",
}
_RESERVED_PREFIX = "triton_"


@dataclass(frozen=True)
class RequestOptions:
    """Settings of one request that Triton itself reads. Given as ``options=`` to `infer_*`.

    Args:
        priority: 1 is the highest of the model's `priority_levels`; 0 is the model's default
        timeout_s: longest wait in the server's queue, in seconds. Triton heeds it where the model's
            `QueuePolicy` has `allow_timeout_override` and a longer `default_timeout_microseconds`.
            The client's own patience is `inference_timeout_s`
        request_id: name of the request in logs and traces; None counts "0", "1", … per client
        sequence_id: sequence that the request belongs to; 0 is none
        sequence_start: it is the first of its sequence
        sequence_end: it is the last of its sequence
        requested_outputs: names of the outputs to return; None returns all

    Raises:
        PyTritonClientValueError: a field is out of its range

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
        if self.priority < 0:
            raise _unusable("priority", self.priority, "0 or more")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise _unusable("timeout_s", self.timeout_s, "more than 0 seconds")
        if self.request_id is not None and not isinstance(self.request_id, str):
            raise _unusable("request_id", self.request_id, "a string")
        if not isinstance(self.sequence_id, (int, str)):
            raise _unusable("sequence_id", self.sequence_id, "an integer or a string")
        if isinstance(self.requested_outputs, str):
            raise _unusable("requested_outputs", self.requested_outputs, "a list of names")

    def as_arguments(self, request_id: str) -> dict[str, Any]:
        """Return them as tritonclient's `infer` names them; the time-out is in µs there."""
        return {
            "request_id": request_id if self.request_id is None else self.request_id,
            "priority": self.priority,
            "timeout": None if self.timeout_s is None else max(1, round(self.timeout_s * 1e6)),
            "sequence_id": self.sequence_id,
            "sequence_start": self.sequence_start,
            "sequence_end": self.sequence_end,
        }


def check_parameters(parameters: Parameters) -> dict[str, Value] | None:
    """Return the request's parameters for tritonclient.

    Raises:
        PyTritonClientValueError: a name or a value that Triton does not take
    """
    if parameters is None:
        return None
    checked = _checked("parameters", parameters)
    for name in checked:
        if name in _RESERVED:
            raise PyTritonClientValueError(
                f"The parameter {name!r} is Triton's own; set it with "
                f"options=RequestOptions({_RESERVED[name]}=...)."
            )
        if name.startswith(_RESERVED_PREFIX) or name == "binary_data_output":
            raise PyTritonClientValueError(
                f"The parameter {name!r} is Triton's own; choose a name that is not "
                f"'binary_data_output' and does not begin with {_RESERVED_PREFIX!r}."
            )
    return checked


def check_headers(headers: Headers) -> dict[str, str]:
    """Return the request's headers as text.

    Raises:
        PyTritonClientValueError: a name or a value that is none
    """
    checked = _checked("headers", {} if headers is None else headers)
    return {name: str(value) for name, value in checked.items()}


def _checked(what: str, given: Mapping[str, Value]) -> dict[str, Value]:
    if not isinstance(given, Mapping):
        raise PyTritonClientValueError(f"The {what} must be a dict, got {given!r}.")
    for name, value in given.items():
        if not isinstance(name, str):
            raise PyTritonClientValueError(f"Names of {what} must be strings, got {name!r}.")
        if not isinstance(value, (str, int, bool)):
            raise PyTritonClientValueError(
                f"Values of {what} must be str, int or bool, got {name!r}: {value!r}. "
                "Send other values as text, or as an input."
            )
    return dict(given)


def _unusable(name: str, value: object, wanted: str) -> PyTritonClientValueError:
    return PyTritonClientValueError(f"RequestOptions: {name} must be {wanted}, got {value!r}.")
