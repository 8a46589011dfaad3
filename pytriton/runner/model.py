"""`RunnerModel`: a model of a runner, called like a function from threads and event loops."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from pytriton.client._inference.response_streams import ResponseBuffer, is_final, stream_arguments
from pytriton.client._inference.tensor_conversion import encode
from pytriton.client._transport.connections import connect
from pytriton.client._transport.failures import CallFailed, describe
from pytriton.runner.daemon_connection import ConnectionProvider, DaemonConnection
from pytriton.runner.errors import RunnerArgumentError
from pytriton.runner.result import InferResult
from pytriton.runner.signature import Signature

__all__ = ["RunnerModel"]

#: Options of tritonclient's `infer`: common to both protocols, and specific to one.
_OPTIONS = (
    "headers", "outputs", "parameters", "priority", "request_id", "sequence_end", "sequence_id", "sequence_start",
    "timeout",
)  # fmt: skip
_GRPC_OPTIONS = ("client_timeout", "compression_algorithm")
_HTTP_OPTIONS = ("query_params", "request_compression_algorithm", "response_compression_algorithm")


class RunnerModel:
    """A model of a runner, identified by its name and optionally its version.

    Inputs are passed by position, in the order of config.pbtxt, or by name. Numbers are converted to the declared
    type of the same kind, for example float64 to float32. If the first dimension of an input may have any size, a
    leading axis is added to a single sample. Other mismatches raise RunnerArgumentError before anything is sent.

    Example:
        >>> runner.onnx_mnist.run(images)                                    # doctest: +SKIP
        >>> await runner["onnx-mnist"].version(2).async_run(INPUT__0=images) # doctest: +SKIP
    """

    def __init__(
        self,
        links: ConnectionProvider,
        name: str,
        version: str = "",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._links = links
        self._name = name
        self._version = version
        self._options = dict(options or {})

    def version(self, number: int | str) -> RunnerModel:
        """Return a specific version of this model.

        Raises:
            RunnerArgumentError: the version is not a positive integer.
        """
        text = str(number)
        if not text.isdecimal() or int(text) < 1:
            raise RunnerArgumentError(f"A version must be a positive integer, got {number!r}")
        return RunnerModel(self._links, self._name, text, self._options)

    def options(self, **options: Any) -> RunnerModel:
        """Return this model with options of tritonclient's `infer` that apply to all of its calls.

        Options include `request_id`, `parameters`, `priority`, `timeout` (maximum wait in the queue, in
        microseconds), `sequence_id`, `outputs` (their names) and `headers`.

        Raises:
            RunnerArgumentError: the option is unknown.
        """
        for name in options:
            if name not in (*_OPTIONS, *_GRPC_OPTIONS, *_HTTP_OPTIONS):
                raise RunnerArgumentError(
                    f"Unknown option {name!r}. Options: {', '.join(_OPTIONS)}; over gRPC also "
                    f"{', '.join(_GRPC_OPTIONS)}; over HTTP also {', '.join(_HTTP_OPTIONS)}"
                )
        return RunnerModel(self._links, self._name, self._version, {**self._options, **options})

    # ── one answer ───────────────────────────────────────────────────────────────────────────────

    def run(self, /, *inputs: Any, **named: Any) -> InferResult:
        """Call the model and return its response. Can be called from any thread.

        Raises:
            RunnerArgumentError: the inputs do not match the model; nothing was sent.
            ModelNotFoundError: the model is not served; the message gives the reason.
            PyTritonClientInferenceServerError: the server responded with an error.
            PyTritonClientTimeoutError: the server did not respond in time.
        """
        link = self._links.link()
        signature = link.signature(self._name, self._version)
        call = self._call(link, signature, inputs, named)
        return InferResult(link.infer(call.arguments, call.headers))

    async def async_run(self, /, *inputs: Any, **named: Any) -> InferResult:
        """Call the model from a coroutine and return its response; see `run`."""
        link = await self._links.async_link()
        signature = await link.asignature(self._name, self._version)
        call = self._call(link, signature, inputs, named)
        return InferResult(await link.ainfer(call.arguments, call.headers))

    # ── any number of answers ────────────────────────────────────────────────────────────────────

    def stream(self, /, *inputs: Any, **named: Any) -> Iterator[InferResult]:
        """Call a decoupled model and yield its responses as they arrive. Requires gRPC.

        The request is sent when the first response is read. Closing the iterator early cancels the request. The
        errors are those of `run`.
        """
        link = self._links.link()
        self._require_grpc(link)
        signature = link.signature(self._name, self._version)
        call = self._call(link, signature, inputs, named)
        # A client of tritonclient can have only one stream, so each stream gets its own client.
        connection = connect(link.url, None)
        client = connection.client()  # type: ignore[attr-defined]  # of gRPC only
        buffer = ResponseBuffer()
        final = False
        try:
            client.start_stream(buffer.put, headers=call.headers)
            client.async_stream_infer(**stream_arguments(call.arguments))
            while not final:
                result = _checked(link, *(buffer.get(link.timeout_s) or (None, None)))
                final = is_final(result)
                if not final or result.get_response().outputs:
                    yield InferResult(result)
        except CallFailed as late:
            raise link.error(late, "stream") from None
        finally:
            buffer.close()
            client.stop_stream(cancel_requests=not final)
            connection.close()

    async def async_stream(self, /, *inputs: Any, **named: Any) -> AsyncIterator[InferResult]:
        """Call the model from a coroutine and yield its responses as they arrive; see `stream`."""
        link = await self._links.async_link()
        self._require_grpc(link)
        signature = await link.asignature(self._name, self._version)
        call = self._call(link, signature, inputs, named)

        async def request() -> AsyncIterator[dict[str, Any]]:
            yield stream_arguments(call.arguments)

        # A gRPC connection, whose client is used directly.
        connection: Any = await link.asynchronous()
        client = connection.client()
        responses = client.stream_infer(request(), headers=call.headers)
        try:
            async for response, error in responses:
                result = _checked(link, response, error)
                final = is_final(result)
                if not final or result.get_response().outputs:
                    yield InferResult(result)
                if final:
                    return
        finally:
            responses.cancel()

    # ── how ──────────────────────────────────────────────────────────────────────────────────────

    def _call(
        self,
        link: DaemonConnection,
        signature: Signature,
        inputs: tuple[Any, ...],
        named: dict[str, Any],
    ) -> _Call:
        module = link.sync.module
        bound = signature.bind(inputs, named)
        arrays = {name: value for name, value in bound.items() if hasattr(value, "dtype")}
        ready = [value for name, value in bound.items() if name not in arrays]
        options = dict(self._options)
        protocol, others = ("gRPC", _HTTP_OPTIONS) if link.url.is_grpc else ("HTTP", _GRPC_OPTIONS)
        for name in others:
            if name in options:
                raise RunnerArgumentError(f"The option {name!r} is not supported over {protocol}")
        headers = {**link.headers, **options.pop("headers", {})}
        if "outputs" in options:
            wanted = options["outputs"]
            unknown = [name for name in wanted if name not in signature.outputs]
            if unknown:
                raise RunnerArgumentError(
                    f"Model {self._name!r} has no output {', '.join(map(repr, unknown))}; its outputs are "
                    f"{', '.join(signature.outputs)}"
                )
            options["outputs"] = [module.InferRequestedOutput(name) for name in wanted]
        arguments = {
            "model_name": self._name,
            "model_version": self._version,
            "inputs": [*encode(arrays, module), *ready],
            **options,
        }
        return _Call(arguments, headers)

    def _require_grpc(self, link: DaemonConnection) -> None:
        if not link.url.is_grpc:
            raise RunnerArgumentError(
                "Streaming requires gRPC: Runner(..., tritonserver_type='grpc'). Over HTTP, Triton sends only "
                "one response"
            )

    def __repr__(self) -> str:
        version = f", version {self._version}" if self._version else ""
        return f"<model {self._name!r}{version} of {self._links!r}>"


@dataclasses.dataclass(frozen=True)
class _Call:
    """The arguments and headers of a request that is ready to be sent."""

    arguments: dict[str, Any]
    headers: dict[str, str]


def _checked(link: DaemonConnection, result: Any, error: Any) -> Any:
    if error is not None:
        failure = describe(error)
        raise link.error(failure, "stream") if failure else error
    return result
