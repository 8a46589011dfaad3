"""`infer_sample` and `infer_batch`, the entry points of all clients, and the validation of their arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pytriton.client._inference.tensor_conversion import check_convention
from pytriton.client.exceptions import PyTritonClientValueError
from pytriton.client.options import (
    Headers,
    Parameters,
    RequestOptions,
    Value,
    check_headers,
    check_parameters,
)

__all__ = ["InferCall", "InferMethods"]

R = TypeVar("R")
_NO_OPTIONS = RequestOptions()


@dataclass(frozen=True)
class InferCall:
    """The arguments of a call to `infer_sample` or `infer_batch`, after the checks that do not depend on the model."""

    positional: Sequence[Any]
    named: Mapping[str, Any]
    parameters: dict[str, Value] | None
    headers: dict[str, str]
    options: RequestOptions
    sample: bool

    @classmethod
    def make(
        cls,
        positional: Sequence[Any],
        named: dict[str, Any],
        parameters: Parameters,
        headers: Headers,
        options: Any,
        *,
        sample: bool,
    ) -> InferCall:
        """Validate the arguments.

        Raises:
            PyTritonClientValueError: an argument is invalid
        """
        # A model may have inputs with these names. An array is always an input.
        ours = {"parameters": parameters, "headers": headers, "options": options}
        arrays = {name: value for name, value in ours.items() if hasattr(value, "dtype")}
        if arrays:
            named = {**named, **arrays}
            parameters = None if "parameters" in arrays else parameters
            headers = None if "headers" in arrays else headers
            options = None if "options" in arrays else options
        if options is not None and not isinstance(options, RequestOptions):
            raise PyTritonClientValueError(
                f"options must be RequestOptions, got {type(options).__name__}: {options!r}."
            )
        check_convention(positional, named)
        return cls(
            positional,
            named,
            check_parameters(parameters),
            check_headers(headers),
            _NO_OPTIONS if options is None else options,
            sample,
        )


class InferMethods(Generic[R]):
    """The inference methods of all five clients, which differ only in the form of the result."""

    def infer_sample(
        self,
        /,
        *inputs: Any,
        parameters: Parameters = None,
        headers: Headers = None,
        options: RequestOptions | None = None,
        **named_inputs: Any,
    ) -> R:
        """Run inference on a single sample. Inputs and outputs have no batch axis.

        Args:
            inputs: numpy arrays, in the order of the model's inputs
            parameters: request parameters (str, int or bool) for the callable
            headers: HTTP headers, or gRPC metadata
            options: priority, request ID, queue timeout, sequence, requested outputs
            named_inputs: arrays by input name, instead of `inputs`. An array passed as `parameters`, `headers` or
                `options` counts as the input of that name. If you need both the input and the argument, pass inputs
                by position.

        Returns:
            the outputs by name, in the form of the client: a dict, a Future of one, an awaitable,
            or an iterator over the responses

        Raises:
            PyTritonClientValueError: an argument is invalid
            PyTritonClientTimeoutError: the server did not respond within `inference_timeout_s`, or could not be
                reached; `PyTritonClientModelUnavailableError` if the server does not have the model
            PyTritonClientInferenceServerError: the server responded with an error
            PyTritonClientClosedError: the client is closed
        """
        return self._infer(
            InferCall.make(inputs, named_inputs, parameters, headers, options, sample=True)
        )

    def infer_batch(
        self,
        /,
        *inputs: Any,
        parameters: Parameters = None,
        headers: Headers = None,
        options: RequestOptions | None = None,
        **named_inputs: Any,
    ) -> R:
        """Run inference on a batch. The first axis of all inputs and outputs is the batch axis.

        Arguments, result and errors are those of `infer_sample`.

        Raises:
            PyTritonClientModelDoesntSupportBatchingError: the model has no batch axis
        """
        return self._infer(
            InferCall.make(inputs, named_inputs, parameters, headers, options, sample=False)
        )

    def _infer(self, request: InferCall) -> R:
        raise NotImplementedError
