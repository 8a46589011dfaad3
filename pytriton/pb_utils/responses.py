"""`InferenceResponse`, and the sender that answers a request at any time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Callable, Optional, Union

from pytriton.pb_utils.constants import TRITONSERVER_RESPONSE_COMPLETE_FINAL
from pytriton.pb_utils.errors import TritonError, TritonModelException
from pytriton.pb_utils.tensor import Tensor, optional_tensors

__all__ = ["InferenceResponse", "ResponseSender"]

Parameters = Mapping[str, Union[bool, int, str]]


def parameters_text(given: Optional[Parameters]) -> str:
    """Return parameters as JSON.

    Raises:
        TritonModelException: not a dict, names that are not str, or values that are not bool, 64-bit int or str.
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
        if (
            isinstance(value, int) and not -(1 << 63) <= value < 1 << 63
        ):  # it would arrive as another number
            raise TritonModelException(
                f"Expect parameters values to have 64 bits, found more in {name!r:.80}"
            )
    return json.dumps(dict(given))


class InferenceResponse:
    """The response to one request: tensors, or an error, which then is all that the client gets.

    Args:
        output_tensors: outputs; those that the client did not request are dropped
        error: fails this request alone
        parameters: parameters of the response (str to bool, int or str); only the compiled proxy can send them
    """

    __slots__ = ("_error", "_output_tensors", "_parameters")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: Optional[TritonError] = None,
        parameters: Optional[Parameters] = None,
    ) -> None:
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"error has to be a pb_utils.TritonError, got {type(error).__name__}")
        if isinstance(output_tensors, (list, tuple)) and any(one is None for one in output_tensors):
            raise TritonModelException("Output tensor for inference response should not be empty.")
        self._output_tensors = optional_tensors(output_tensors, "output_tensors")
        self._error = error
        self._parameters = parameters_text(parameters)

    @classmethod
    def received(cls, output_tensors: list[Tensor], parameters: str) -> InferenceResponse:
        """Return another model's response, with its parameters as JSON. For workers."""
        response = cls(output_tensors)
        response._parameters = parameters or "{}"
        return response

    def output_tensors(self) -> list[Tensor]:
        """The tensors."""
        return self._output_tensors

    def has_error(self) -> bool:
        """Return whether the response is an error."""
        return self._error is not None

    def error(self) -> Optional[TritonError]:
        """Return the error, or None."""
        return self._error

    def parameters(self) -> str:
        """The parameters, JSON."""
        return self._parameters


class ResponseSender:
    """Sends the responses to one request, from any thread, even after `execute` has returned. See `send`."""

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
        """Send a response, or only the flag that ends the responses.

        Args:
            response: a response; a decoupled model may send any number
            flags: 0, or TRITONSERVER_RESPONSE_COMPLETE_FINAL with or after the last response. A model that is
                not decoupled sends one response, which is final

        Raises:
            TritonModelException: the final response was sent already, or there is nothing to send.
            TypeError: `response` has a wrong type.
        """
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(
                f"send takes a pb_utils.InferenceResponse, got {type(response).__name__}"
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
                    "Unable to send response. A model that is not decoupled has to answer each request."
                )
            self._answered = final = True
        self._closed = final
        self._send(response, final)

    def is_cancelled(self) -> bool:
        """Return whether the client has disconnected or cancelled; the final flag must still be sent."""
        return self._is_cancelled()

    @property
    def closed(self) -> bool:
        """True if the final response has been sent."""
        return self._closed
