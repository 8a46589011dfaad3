"""`InferResult`: a model's response, with the same methods over both protocols."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from pytriton.runner.errors import RunnerArgumentError

__all__ = ["InferResult"]


class InferResult:
    """A model's response. Outputs are accessed by name.

    Example:
        >>> result = runner.onnx_mnist.run(images)                           # doctest: +SKIP
        >>> result.as_numpy("OUTPUT__0").argmax(axis=1)                      # doctest: +SKIP
    """

    def __init__(self, result: Any) -> None:
        self._result = result

    @property
    def outputs(self) -> list[str]:
        """Return the names of the outputs in the response."""
        response = self._result.get_response()
        if isinstance(response, dict):
            return [str(output["name"]) for output in response.get("outputs", ())]
        return [str(output.name) for output in response.outputs]

    def as_numpy(self, name: str) -> npt.NDArray[Any]:
        """Return an output as an array.

        Raises:
            RunnerArgumentError: the response has no such output; the message lists those it has.
        """
        array: npt.NDArray[Any] | None = self._result.as_numpy(name)
        if array is None:
            raise self._unknown(name)
        return array

    def get_output(self, name: str, as_json: bool = False) -> Any:
        """Return an output as the protocol represents it. For gRPC, it is a message, or a dict with `as_json`; for
        HTTP, it is a dict.

        Raises:
            RunnerArgumentError: the response has no such output; the message lists those it has.
        """
        # Not tritonclient's own as_json (2.73 returns None).
        output = self._result.get_output(name)
        if output is None:
            raise self._unknown(name)
        return message_as_json(output) if as_json else output

    def get_response(self, as_json: bool = False) -> Any:
        """Return the whole response. For gRPC, it is a message, or a dict with `as_json`; for HTTP, it is a dict."""
        response = self._result.get_response()
        return message_as_json(response) if as_json else response

    def _unknown(self, name: str) -> RunnerArgumentError:
        there = ", ".join(self.outputs) or "none"
        return RunnerArgumentError(f"The response has no output {name!r}; its outputs are {there}")

    def __repr__(self) -> str:
        return f"InferResult({', '.join(self.outputs)})"


def message_as_json(message: Any) -> Any:
    """Convert a protobuf message to a dict with the message's field names. Return a dict unchanged."""
    if isinstance(message, dict):
        return message
    # gRPC has already been imported, and protobuf with it.
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(message, preserving_proto_field_name=True)
