"""Triton's side of the Python proxy without Triton: the part of `triton_python_backend_utils` that the proxy uses.

Importing this makes the proxy's modules importable in this process; they are bound to this stub.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from pytriton.pb_utils import tensor

_NAME = "triton_python_backend_utils"


class TritonError:
    """An error with a code."""

    (
        UNKNOWN,
        INTERNAL,
        NOT_FOUND,
        INVALID_ARG,
        UNAVAILABLE,
        UNSUPPORTED,
        ALREADY_EXISTS,
        CANCELLED,
    ) = range(8)

    def __init__(self, text: str, code: int = INTERNAL) -> None:
        self._text, self._code = text, code

    def message(self) -> str:
        return self._text

    def code(self) -> int:
        return self._code


class TritonModelException(Exception):
    """The exception that `initialize` raises."""


class Tensor:
    """A tensor; strings are serialized and read by the module's functions, which the proxy replaces."""

    def __init__(self, name: str, array: Any) -> None:
        self._name, self._shape = name, list(array.shape)
        self._is_text = array.dtype.kind in "OS"
        self.held = pb_utils.serialize_byte_tensor(array) if self._is_text else array

    @classmethod
    def from_dlpack(cls, name: str, source: Any) -> Tensor:
        made = cls(name, np.zeros(0, np.uint8))
        made.held = source.__dlpack__()
        return made

    def name(self) -> str:
        return self._name

    def shape(self) -> list[int]:
        return self._shape

    def as_numpy(self) -> Any:
        if self._is_text:
            encoded = np.frombuffer(self.held, np.uint8)
            return pb_utils.deserialize_bytes_tensor(encoded).reshape(self._shape)
        return self.held

    def decoded(self) -> Any:
        """Return the value as a client receives it."""
        return _deserialize(self.held).reshape(self._shape) if self._is_text else self.held

    def __dlpack__(self, **options: Any) -> Any:
        if self._is_text:
            raise RuntimeError("DLPack does not support String tensors")
        if self.held.dtype == np.bool_:  # numpy exports bools since 1.25
            return tensor.export_dlpack(self.held, bfloat=False)
        return self.held.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class InferenceResponse:
    """Outputs, or an error."""

    def __init__(
        self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None
    ) -> None:
        self._outputs, self._error = list(output_tensors), error

    def output_tensors(self) -> list[Tensor]:
        return self._outputs

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def reported(self) -> tuple[str, int] | dict[str, Any]:
        """Return the error's text and code, or the outputs by name."""
        if self._error is not None:
            return self._error.message(), self._error.code()
        return {one.name(): one.decoded() for one in self._outputs}


class InferenceRequest:
    """A call of another model; `answer` computes its result from the arguments."""

    answer: Callable[[dict[str, Any]], Any] = staticmethod(lambda asked: InferenceResponse())

    def __init__(self, **asked: Any) -> None:
        self.asked = asked

    def exec(self, decoupled: bool = False) -> Any:
        return type(self).answer({**self.asked, "decoupled": decoupled})


class MetricFamily:
    """A family of metrics; `made` lists all that were created."""

    COUNTER, GAUGE, HISTOGRAM = range(3)
    made: ClassVar[list[MetricFamily]] = []

    def __init__(self, name: str, description: str, kind: int) -> None:
        self.name, self.description, self.kind = name, description, kind
        self.changes: list[tuple[Any, ...]] = []
        self.made.append(self)

    def Metric(self, labels: Any = None, buckets: Any = None) -> _Metric:
        self.changes.append(("made", labels, buckets))
        return _Metric(self, labels)


class _Metric:
    def __init__(self, family: MetricFamily, labels: Any) -> None:
        self._family, self._labels = family, labels

    def __getattr__(self, change: str) -> Callable[[float], None]:
        if change not in ("increment", "set", "observe"):
            raise AttributeError(change)

        def apply(value: float) -> None:
            if value < 0:
                raise TritonModelException("a counter only grows")
            self._family.changes.append((change, self._labels, value))

        return apply


class Logger:
    """Records log messages."""

    errors: ClassVar[list[str]] = []

    @classmethod
    def log_error(cls, text: str) -> None:
        cls.errors.append(text)


class Sender:
    """Records the responses to one request."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, int]] = []
        self.cancelled = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        self.sent.append((None if response is None else response.reported(), flags))

    def is_cancelled(self) -> bool:
        return self.cancelled


class _Trace:
    def __init__(self, context: str | None) -> None:
        self._context = context

    def get_context(self) -> str | None:
        return self._context


class Request:
    """A request as the stub passes it to `execute`. A `bytes` value stands for text that is not valid UTF-8."""

    def __init__(
        self,
        *inputs: Tensor,
        parameters: str | bytes = "",
        request_id: str | bytes = "",
        context: str | None = None,
        outputs: Sequence[str] = ("y",),
    ) -> None:
        self._inputs = inputs
        self._parameters, self._request_id = parameters, request_id
        self._context, self._outputs = context, list(outputs)
        self.sender = Sender()
        self.release_flags = 0

    def inputs(self) -> list[Tensor]:
        return list(self._inputs)

    def parameters(self) -> str:
        return _text(self._parameters)

    def request_id(self) -> str:
        return _text(self._request_id)

    def requested_output_names(self) -> list[str]:
        return self._outputs

    def correlation_id(self) -> int:
        return 5

    def flags(self) -> int:
        return 3

    def timeout(self) -> int:
        return 7

    def trace(self) -> _Trace:
        return _Trace(self._context)

    def get_response_sender(self) -> Sender:
        return self.sender

    def set_release_flags(self, flags: int) -> None:
        self.release_flags = flags


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _serialize(array: Any) -> bytes:
    encoded = [one if isinstance(one, bytes) else str(one).encode() for one in array.flat]
    return b"".join(len(one).to_bytes(4, "little") + one for one in encoded)


def _parts(encoded: bytes) -> Iterator[bytes]:
    while encoded:
        size = int.from_bytes(encoded[:4], "little")
        yield encoded[4 : 4 + size]
        encoded = encoded[4 + size :]


def _deserialize(encoded: bytes) -> Any:
    return np.array(list(_parts(bytes(encoded))), object)


pb_utils = types.ModuleType(_NAME)
for _one in (
    TritonError, TritonModelException, Tensor, InferenceResponse, InferenceRequest, MetricFamily, Logger,
):  # fmt: skip
    setattr(pb_utils, _one.__name__, _one)
pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1  # type: ignore[attr-defined]
pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2  # type: ignore[attr-defined]
FINAL = 1


def restore() -> None:
    """Undo the proxy's changes to the module, and clear what was recorded."""
    pb_utils.serialize_byte_tensor = _serialize  # type: ignore[attr-defined]
    pb_utils.deserialize_bytes_tensor = _deserialize  # type: ignore[attr-defined]
    MetricFamily.made.clear()
    Logger.errors.clear()
    InferenceRequest.answer = staticmethod(lambda asked: InferenceResponse())


restore()
_before = sys.modules.get(_NAME)
sys.modules[_NAME] = pb_utils
try:
    from pytriton.proxy_backend.python_proxy.model import (
        TritonPythonModel as TritonPythonModel,  # and all the others
    )
finally:
    if _before is None:
        del sys.modules[_NAME]
    else:
        sys.modules[_NAME] = _before
