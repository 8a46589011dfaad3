"""Requests, responses, and the sender that can answer a request at any time.

An `InferenceRequest` is either one that the model has to answer, or one that it sends to another model.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Callable, Optional, Union

from pytriton.pb_utils import host
from pytriton.pb_utils.errors import TritonError, TritonModelException
from pytriton.pb_utils.tensor import Tensor, optional_tensors

__all__ = ["InferenceRequest", "InferenceResponse", "InferenceTrace", "ResponseSender"]

# tritonserver's values (tritonserver.h).
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2


class _MemoryType(enum.IntEnum):
    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


TRITONSERVER_MEMORY_GPU = _MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_MEMORY_CPU = _MemoryType.TRITONSERVER_MEMORY_CPU


class PreferredMemory:
    """The preferred memory for the outputs of a call to another model.

    Workers ignore it: outputs are always in CPU memory.
    """

    def __init__(self, preferred_memory_type: _MemoryType, preferred_device_id: int = 0) -> None:
        if not isinstance(preferred_memory_type, _MemoryType):
            raise TypeError(
                "PreferredMemory requires TRITONSERVER_MEMORY_CPU or TRITONSERVER_MEMORY_GPU, got "
                f"{preferred_memory_type!r:.80}"
            )
        self.preferred_memory_type = preferred_memory_type
        self.preferred_device_id = preferred_device_id


Parameters = Mapping[str, Union[bool, int, str]]


def parameters_text(given: Optional[Parameters]) -> str:
    """Convert parameters to JSON.

    Raises:
        TritonModelException: the parameters are not a dict, a name is not str, or a value is not bool, 64-bit int or
            str.
    """
    if given is None:
        return "{}"
    if not isinstance(given, Mapping):
        raise TritonModelException(f"Expect parameters to be a dict, found type {type(given)}")
    for name, value in given.items():
        if not isinstance(name, str):
            raise TritonModelException(
                f"Expect parameters keys to have type str, found type {type(name)}"
            )
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(
                f"Expect parameters values to have type bool/int/str, found type {type(value)} of {name!r:.80}"
            )
        # A larger integer would arrive as a different number.
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise TritonModelException(
                f"Expect parameters values to fit in 64 bits, found a larger integer for {name!r:.80}"
            )
    return json.dumps(dict(given))


class InferenceResponse:
    """The response to a request: tensors or an error.

    Args:
        output_tensors: the outputs; those that the client did not request are dropped
        error: error of this request; the client gets no outputs then
        parameters: parameters of the response, a dict of str to bool, int or str; only the compiled proxy can send
            them
    """

    __slots__ = ("_error", "_output_tensors", "_parameters")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: Optional[TritonError] = None,
        parameters: Optional[Parameters] = None,
    ) -> None:
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"error must be a pb_utils.TritonError, got {type(error).__name__}")
        if isinstance(output_tensors, (list, tuple)) and any(one is None for one in output_tensors):
            raise TritonModelException("Output tensor for inference response should not be empty.")
        self._output_tensors = optional_tensors(output_tensors, "output_tensors")
        self._error = error
        self._parameters = parameters_text(parameters)

    @classmethod
    def received(cls, output_tensors: list[Tensor], parameters: str) -> InferenceResponse:
        """Create a response received from another model, with its parameters as JSON. Called by workers."""
        response = cls(output_tensors)
        response._parameters = parameters or "{}"
        return response

    def output_tensors(self) -> list[Tensor]:
        """Return the output tensors."""
        return self._output_tensors

    def has_error(self) -> bool:
        """Return whether the response is an error."""
        return self._error is not None

    def error(self) -> Optional[TritonError]:
        """Return the error, or None."""
        return self._error

    def parameters(self) -> str:
        """Return the parameters of the response as JSON."""
        return self._parameters


class ResponseSender:
    """Sends the responses to a request, from any thread, even after `execute` has returned."""

    def __init__(
        self,
        send: Callable[[Optional[InferenceResponse], bool], None],
        is_cancelled: Callable[[], bool],
        *,
        decoupled: bool,
    ) -> None:
        self._send = send
        self._is_cancelled = is_cancelled
        self._decoupled = decoupled
        self._closed = False
        self._answered = False

    def send(self, response: Optional[InferenceResponse] = None, flags: int = 0) -> None:
        """Send a response, or only the flag that marks the end of the responses.

        Args:
            response: the response; a decoupled model may send any number of responses
            flags: 0, or TRITONSERVER_RESPONSE_COMPLETE_FINAL with the last response or after it. The only response of
                a model that is not decoupled is always final

        Raises:
            TritonModelException: the final response has already been sent, or there is nothing to send.
            TypeError: `response` has the wrong type.
        """
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(
                f"send requires a pb_utils.InferenceResponse, got {type(response).__name__}"
            )
        if flags not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
            raise TritonModelException(f"Unable to send response. Unsupported flag {flags!r}.")
        final = flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL
        if response is None and not final:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if self._closed and not (self._answered and response is None):
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        if self._closed:
            return  # the final flag of a model that is not decoupled, after its response
        if not self._decoupled:
            if response is None:
                raise TritonModelException(
                    "Unable to send response. A model that is not decoupled must respond to each request."
                )
            self._answered = final = True
        self._closed = final
        self._send(response, final)

    def is_cancelled(self) -> bool:
        """Return whether the client has disconnected or cancelled the request.

        The final flag must be sent nevertheless.
        """
        return self._is_cancelled()

    @property
    def closed(self) -> bool:
        """True if the final response has been sent."""
        return self._closed


class InferenceTrace:
    """The trace of a request. Pass it to the requests that you send to other models on its behalf."""

    def __init__(self, context: Optional[str] = None) -> None:
        self._context = context

    def get_context(self) -> Optional[str]:
        """Return the OpenTelemetry context as JSON; None if the request is not traced."""
        return self._context


#: Marks required arguments that follow optional ones.
_MISSING: Any = object()


def _check_types(**given: tuple[Any, Any]) -> None:
    for name, (value, kind) in given.items():
        if value is _MISSING:
            raise TypeError(
                f"InferenceRequest requires inputs, requested_output_names and model_name; {name} is missing"
            )
        if not isinstance(value, kind):
            raise TypeError(f"InferenceRequest: {name}={value!r:.80} has the wrong type")


def _check_values(outputs: Any, correlation_id: Any, flags: int, timeout: int) -> None:
    if isinstance(outputs, str) or not all(isinstance(name, str) for name in outputs):
        raise TypeError(f"requested_output_names must be a list of str, got {outputs!r:.200}")
    if not isinstance(correlation_id, (int, str)):
        wrong = TypeError if correlation_id is None else TritonModelException
        raise wrong(f"Correlation ID must be integer or string, got {correlation_id!r:.80}")
    if isinstance(correlation_id, int) and not 0 <= correlation_id < 1 << 64:
        raise TritonModelException(
            f"Correlation ID must be between 0 and 2**64 - 1, got {correlation_id}"
        )
    for name, value, bits in (("flags", flags, 32), ("timeout", timeout, 64)):
        if not 0 <= value < 1 << bits:
            raise TypeError(f"InferenceRequest: {name}={value} must be between 0 and 2**{bits} - 1")


class InferenceRequest:
    """A request to this model, as passed to `execute`, or to another model, to be sent with `exec` or `async_exec`.

    Args:
        request_id: ID of the request, any string
        correlation_id: ID of the sequence that the request belongs to, int or str
        inputs: input tensors
        requested_output_names: names of the outputs to return
        model_name: name of the model to call
        model_version: version of the model; -1: Triton chooses
        flags: TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, ..._END
        timeout: timeout in microseconds; 0: none
        preferred_memory: ignored: outputs are always in CPU memory
        trace: trace of the request that is being answered
        parameters: parameters of the request, a dict of str to bool, int or str

    Raises:
        TypeError: `inputs`, `requested_output_names` or `model_name` is missing, or an argument has the wrong type.
        TritonModelException: an input is None, or a value is out of range.
    """

    __slots__ = (
        "_cancelled", "_correlation_id", "_flags", "_inputs", "_model_name", "_model_version",
        "_parameters", "_release_flags", "_request_id", "_requested", "_sender", "_timeout",
        "_trace",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str = "",
        correlation_id: Union[int, str] = 0,
        inputs: Sequence[Tensor] = _MISSING,
        requested_output_names: Collection[str] = _MISSING,
        model_name: str = _MISSING,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: Optional[PreferredMemory] = None,
        trace: Optional[InferenceTrace] = None,
        parameters: Optional[Parameters] = None,
    ) -> None:
        _check_types(
            request_id=(request_id, str),
            inputs=(inputs, object),
            requested_output_names=(requested_output_names, Collection),
            model_name=(model_name, str),
            model_version=(model_version, int),
            flags=(flags, int),
            timeout=(timeout, int),
            preferred_memory=(preferred_memory, (PreferredMemory, type(None))),
            trace=(trace, (InferenceTrace, type(None))),
        )
        _check_values(requested_output_names, correlation_id, flags, timeout)
        if isinstance(inputs, (list, tuple)) and any(tensor is None for tensor in inputs):
            raise TritonModelException(
                f"Input tensor for request with id '{request_id}' and model name '{model_name}' should not be empty."
            )
        self._request_id = request_id
        self._correlation_id = correlation_id
        self._inputs = optional_tensors(inputs, "inputs")
        self._requested = set(requested_output_names)
        self._model_name = model_name
        self._model_version = model_version
        self._flags = flags
        self._timeout = timeout
        self._trace = trace or InferenceTrace()
        self._parameters = parameters_text(parameters)
        self._release_flags = TRITONSERVER_REQUEST_RELEASE_ALL
        self._cancelled: Optional[Callable[[], bool]] = None
        self._sender: Optional[Callable[[], ResponseSender]] = None

    @classmethod
    def incoming(
        cls,
        inputs: list[Tensor],
        requested: Iterable[str],
        parameters: str,
        *,
        request_id: str,
        correlation_id: Union[int, str],
        flags: int,
        timeout: int,
        trace: Optional[str],
        model: tuple[str, int],
    ) -> InferenceRequest:
        """Create a request that the model has to answer. Called by workers."""
        request = cls.__new__(cls)
        request._inputs = inputs
        request._requested = set(requested)
        request._parameters = parameters or "{}"  # as Triton's python backend represents none
        request._request_id = request_id
        request._correlation_id = correlation_id
        request._flags = flags
        request._timeout = timeout
        request._trace = InferenceTrace(trace)
        request._model_name, request._model_version = model
        request._release_flags = TRITONSERVER_REQUEST_RELEASE_ALL
        request._cancelled = None
        request._sender = None
        return request

    def bind(self, sender: Callable[[], ResponseSender], cancelled: Callable[[], bool]) -> None:
        """Set how the request is answered, and how to query whether it was cancelled. Called by workers."""
        self._sender = sender
        self._cancelled = cancelled

    def inputs(self) -> list[Tensor]:
        """Return the input tensors, without optional ones that the client did not send."""
        return self._inputs

    def request_id(self) -> str:
        """Return the ID set by the client, or ""."""
        return self._request_id

    def correlation_id(self) -> Union[int, str]:
        """Return the ID of the sequence that the request belongs to; 0 if it belongs to no sequence."""
        return self._correlation_id

    def model_name(self) -> str:
        """Return the name of the requested model."""
        return self._model_name

    def model_version(self) -> int:
        """Return the requested version of the model."""
        return self._model_version

    def requested_output_names(self) -> set[str]:
        """Return the names of the requested outputs."""
        return self._requested

    def flags(self) -> int:
        """Return the sequence flags."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Set the sequence flags.

        Raises:
            TypeError: the flags are not an int.
        """
        _check_types(flags=(flags, int))
        self._flags = flags

    def timeout(self) -> int:
        """Return the timeout in microseconds; 0 if there is none."""
        return self._timeout

    def parameters(self) -> str:
        """Return the parameters as JSON."""
        return self._parameters

    def given_parameters(self) -> dict[str, Any]:
        """Return the parameters as a dict."""
        found: dict[str, Any] = json.loads(self._parameters) if self._parameters else {}
        return found

    def trace(self) -> InferenceTrace:
        """Return the trace of the request."""
        return self._trace

    def preferred_memory(self) -> None:
        """Return None: workers ignore the preferred memory for the outputs."""

    def is_cancelled(self) -> bool:
        """Return whether the client has disconnected or cancelled the request.

        This is known after about a quarter of a second.

        Raises:
            TritonModelException: this is not a request that the model has to answer.
        """
        if self._cancelled is None:
            raise TritonModelException(
                "Cannot determine request cancellation: this request was not received from a client but created "
                "by the model"
            )
        return self._cancelled()

    def get_response_sender(self) -> ResponseSender:
        """Return the sender for the responses to this request. It is the same object each time.

        Raises:
            TritonModelException: this is not a request that the model has to answer.
        """
        if self._sender is None:
            raise TritonModelException(
                "This request was created by the model and has no response sender"
            )
        return self._sender()

    def set_release_flags(self, flags: int) -> None:
        """Set what happens to the request after `execute` has returned.

        Args:
            flags: TRITONSERVER_REQUEST_RELEASE_ALL, or TRITONSERVER_REQUEST_RELEASE_RESCHEDULE to queue the request
                again (for models with iterative_sequence)

        Raises:
            TritonModelException: the flags are invalid.
        """
        if flags not in (TRITONSERVER_REQUEST_RELEASE_ALL, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE):
            raise TritonModelException(
                f"Unable to set request release flags. Invalid flags {flags!r}."
            )
        self._release_flags = flags

    @property
    def rescheduled(self) -> bool:
        """True if Triton should queue the request again."""
        return self._release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE

    def exec(self, decoupled: bool = False) -> Any:
        """Send the request to the model and return its response.

        Args:
            decoupled: return an iterator over all responses of a decoupled model instead of a single response

        Raises:
            TritonModelException: the request cannot be sent. If the model responds with an error, the returned
                response contains it.
        """
        return host.current().infer(self, decoupled=decoupled)

    async def async_exec(self, decoupled: bool = False) -> Any:
        """Send the request to the model without blocking the event loop; see `exec`."""
        return await host.current().async_infer(self, decoupled=decoupled)
