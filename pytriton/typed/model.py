"""The Triton model for a typed function: its tensors, its configuration, and the callable that runs in the worker."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import typing
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from pytriton._protocol import routes
from pytriton._protocol.messages import WebRoute
from pytriton.decorators.wrapping import Kind
from pytriton.exceptions import HTTPError, PyTritonValidationError
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.typed.bodies import JSON, Arguments, RequestDecoder, ResultEncoder, media_type_of
from pytriton.typed.problems import Problem, problem_document
from pytriton.typed.schema import operation_of
from pytriton.typed.signature import Signature, signature_of
from pytriton.typed.tensors import BODY, TensorCodec, tensor_codec

__all__ = ["BODY", "CONTENT_TYPE", "ROUTE", "TypedModel", "make_model", "model_of", "served"]

Decode = Callable[[bytes, str], Arguments]

#: Request parameters set by the frontend: the body's Content-Type, and a flag for requests sent to the model's route.
CONTENT_TYPE, ROUTE = "content_type", "route"

_BODY = Tensor(name=BODY, dtype=bytes, shape=(1,))


class TypedModel(NamedTuple):
    """The callables and tensors that are registered in place of the user's functions.

    Attributes:
        targets: one callable for each of the user's functions
        inputs: the body of the request, or tensors for the parameters
        outputs: the body of the response, and tensors for the result
        config: the user's configuration, with the batching and streaming that the function needs
        factory: whether the targets create callables in the worker
        signature: the function's parameters and result
        documented: the OpenAPI operation, and the schemas that it refers to
    """

    targets: list[Any]
    inputs: list[Tensor]
    outputs: list[Tensor]
    config: ModelConfig
    factory: bool
    signature: Signature
    documented: tuple[dict[str, Any], dict[str, Any]]

    def route(self, path: str, *, put: bool = False) -> WebRoute:
        """Return the description of the model's HTTP route.

        Args:
            path: its path
            put: whether it accepts PUT like POST

        Raises:
            PyTritonValidationError: the path is invalid
        """
        try:
            routes.check(path)
        except ValueError as error:
            raise PyTritonValidationError(f"{self.signature.name}: {error}") from None
        operation, schemas = self.documented
        media_type = media_type_of(self.signature.result)
        return WebRoute(path, media_type, self.signature.streams, operation, schemas, put)


def make_model(targets: Sequence[Any], config: ModelConfig | None, *, factory: bool) -> TypedModel:
    """Create the model that serves typed functions.

    Args:
        targets: functions, methods, callable objects, or classes of them; one for each instance
        config: the user's configuration; batching is set by `@batchable` and streaming by the function itself
        factory: whether `targets` create the functions. Since they are called only in the worker, their return type
            must be annotated as a class with a typed `__call__`

    Raises:
        PyTritonValidationError: the annotations or the configuration are invalid, or a type cannot be represented in
            JSON
    """
    described = [_made_by(target) if factory else target for target in targets]
    signatures = [signature_of(target) for target in described]
    signature = signatures[0]
    if any(
        dataclasses.replace(one, doc=signature.doc, name=signature.name) != signature
        for one in signatures
    ):
        raise PyTritonValidationError(
            "The functions of one model must all have the same parameters and result."
        )
    documented = operation_of(signature)  # reports types that the endpoints could not decode either
    made = factory or any(inspect.isclass(target) for target in targets)
    wrapped = [
        Made(one, signature) if made else served(one, signature, has_tensors=True)
        for one in targets
    ]
    return TypedModel(
        wrapped,
        *_tensors(tensor_codec(signature)),
        _configuration(signature, config),
        made,
        signature,
        documented,
    )


def model_of(signature: Signature) -> TypedModel:
    """Return the model for a function that can be created only in a worker. Its only tensors are those for the bodies."""
    config = _configuration(signature, None)
    return TypedModel([], [_BODY], [_BODY], config, True, signature, operation_of(signature))


def _tensors(codec: TensorCodec | None) -> tuple[list[Tensor], list[Tensor]]:
    if codec is None:
        return [_BODY], [_BODY]
    return [dataclasses.replace(_BODY, optional=True), *codec.inputs], [_BODY, *codec.outputs]


def _made_by(factory: Any) -> Any:
    if inspect.isclass(factory):
        return factory
    returned = typing.get_type_hints(factory).get("return")
    if inspect.isclass(returned) and "__call__" in dir(returned):
        return returned
    raise PyTritonValidationError(
        f"{factory!r} creates the function in the worker, so its signature is not known here. Annotate its return type "
        "with a class that has a typed __call__, or pass inputs= and outputs= to serve tensors."
    )


def _configuration(signature: Signature, config: ModelConfig | None) -> ModelConfig:
    config = config or ModelConfig()
    batching = signature.batching
    if batching is None:
        # Always with a batch axis, so that the frontend need not know which functions are batchable.
        return dataclasses.replace(
            config, batching=True, max_batch_size=1, batcher=None, decoupled=signature.streams
        )
    return dataclasses.replace(
        config,
        batching=True,
        decoupled=False,
        max_batch_size=batching.max_batch_size,
        batcher=DynamicBatcher(max_queue_delay_microseconds=round(batching.max_delay_s * 1e6)),
    )


class Made:
    """A factory that, in the worker, calls the user's factory and wraps the function that it creates."""

    def __init__(self, factory: Callable[[], Any], signature: Signature) -> None:
        self.factory = factory
        self.signature = signature

    def __call__(self) -> Any:
        """Return the inference callable."""
        made = self.factory()
        if inspect.isawaitable(made):
            return self._awaited(made)
        return served(made, self.signature, has_tensors=True)

    async def _awaited(self, made: Any) -> Any:
        return served(await made, self.signature, has_tensors=True)


def served(
    target: Any, signature: Signature, decode: Decode | None = None, *, has_tensors: bool = False
) -> Any:
    """Return the inference callable that wraps a typed function.

    Args:
        target: the function
        signature: what it takes and returns
        decode: returns the arguments that a body contains, given its Content-Type; None: as the signature says
        has_tensors: whether the model also has the tensors of its parameters and result
    """
    is_batched = signature.batching is not None
    kinds: dict[Kind, type[_Endpoint]] = {
        Kind.FUNCTION: Batches if is_batched else Calls,
        Kind.COROUTINE: AsyncBatches if is_batched else AsyncCalls,
        Kind.GENERATOR: Streams,
        Kind.ASYNC_GENERATOR: AsyncStreams,
    }
    return kinds[signature.kind](target, signature, decode, has_tensors=has_tensors)


class _Endpoint:
    """Inference callable that wraps a typed function. The two are pickled together."""

    def __init__(
        self,
        target: Callable[..., Any],
        signature: Signature,
        decode: Decode | None = None,
        *,
        has_tensors: bool = False,
    ) -> None:
        self.target = target
        self.signature = signature
        self.has_tensors = has_tensors
        self._prepare(decode)

    def _prepare(self, decode: Decode | None = None) -> None:
        decoder = RequestDecoder(self.signature)
        self._decode_body = decode or decoder.decode
        self._bind = decoder.bind
        self._encoder = ResultEncoder(self.signature.result)
        self._codec = tensor_codec(self.signature) if self.has_tensors else None

    def __getstate__(self) -> dict[str, Any]:
        names = ("target", "signature", "has_tensors")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()  # in the worker, with the types of its environment

    def _decode(self, request: Any) -> Arguments:
        """Return the arguments in a request that has one row."""
        rows = self._decode_rows(request)
        if len(rows) != 1:
            raise Problem(400, f"Expected a batch of 1, got {len(rows)}")
        return rows[0]

    def _decode_rows(self, request: Any) -> list[Arguments]:
        inputs = request.data
        if BODY in inputs:
            if len(inputs) > 1:
                raise Problem(400, f"Send either the input {BODY!r} or one input per parameter")
            parameters = request.parameters
            content_type = parameters.get(CONTENT_TYPE, JSON) if parameters else JSON
            if not isinstance(content_type, str):
                raise Problem(400, f"The parameter {CONTENT_TYPE!r} must be a string")
            return [self._decode_body(body, content_type) for body in inputs[BODY].ravel()]
        if self._codec is None:
            raise Problem(400, f"Send the input {BODY!r}")
        count = next((len(array) for array in inputs.values()), 1)
        return [self._bind(row) for row in self._codec.decode(inputs, count)]

    def _encode(self, request: Any, results: Sequence[Any]) -> dict[str, Any]:
        """Return the response, with the results for the request's rows.

        A request for all outputs gets the body if it sent a body, and tensors if it sent tensors. It may have named none:
        Triton's core then names all.
        """
        names = self._codec.names if self._codec is not None else []
        wanted = request.requested_output_names
        if not wanted or len(wanted) > len(names):
            wanted = names if names and BODY not in request.data else [BODY]
        response = {}
        if BODY in wanted:
            body = response[BODY] = np.empty((len(results), 1), object)
            for row, result in enumerate(results):
                body[row, 0] = self._encoder.encode(result)
        if self._codec is not None and wanted != [BODY]:
            response.update(self._codec.encode(results, wanted))
        return response


def _failure(request: Any, error: Exception) -> Exception:
    """Return the error for a request, in the format that its client expects."""
    if isinstance(error, HTTPError) and ROUTE in (request.parameters or {}):
        return HTTPError(error.status, problem_document(error))
    return error


class Calls(_Endpoint):
    """Calls a function once for each request."""

    def __call__(self, requests: Sequence[Any]) -> list[Any]:
        """Return the result of each request, or its error."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            args, kwargs = self._decode(request)
            return self._encode(request, [self.target(*args, **kwargs)])
        except HTTPError as error:
            return _failure(request, error)


class AsyncCalls(_Endpoint):
    """Calls a coroutine function once for each request, concurrently."""

    async def __call__(self, requests: Sequence[Any]) -> list[Any]:
        """Return the result of each request, or its error."""
        if len(requests) == 1:
            return [await self._answer(requests[0])]
        return await asyncio.gather(*map(self._answer, requests), return_exceptions=True)

    async def _answer(self, request: Any) -> Any:
        try:
            args, kwargs = self._decode(request)
            return self._encode(request, [await self.target(*args, **kwargs)])
        except HTTPError as error:
            return _failure(request, error)


class Batches(_Endpoint):
    """Calls a batchable function once for all requests whose bodies are valid."""

    def __call__(self, requests: Sequence[Any]) -> list[Any]:
        """Return the result of each request, or its error."""
        results, places, (args, kwargs) = self._gather(requests)
        if any(places):
            self._spread(requests, results, places, self.target(*args, **kwargs))
        return results

    def _gather(self, requests: Sequence[Any]) -> tuple[list[Any], list[range], Arguments]:
        """Return an error for each invalid request, the rows of each request, and the arguments of all rows."""
        results: list[Any] = [None] * len(requests)
        places: list[range] = []
        columns: dict[str, list[Any]] = {one.name: [] for one in self.signature.parameters}
        count = 0
        for index, request in enumerate(requests):
            try:
                rows = self._decode_rows(request)
            except Problem as error:
                results[index] = _failure(request, error)
                rows = []
            places.append(range(count, count + len(rows)))
            count += len(rows)
            for args, kwargs in rows:
                for position, parameter in enumerate(self.signature.parameters):
                    name = parameter.name
                    columns[name].append(
                        args[position]
                        if position < len(args)
                        else kwargs.get(name, parameter.default)
                    )
        by_position = [columns.pop(one.name) for one in self.signature.parameters if one.positional]
        return results, places, Arguments(by_position, columns)

    def _spread(
        self, requests: Sequence[Any], results: list[Any], places: list[range], produced: Any
    ) -> None:
        count = places[-1].stop
        if not isinstance(produced, (list, tuple, np.ndarray)) or len(produced) != count:
            got = (
                f"{len(produced)} results" if hasattr(produced, "__len__") else f"{produced!r:.100}"
            )
            raise ValueError(
                f"{self.signature.name} must return a list with one result for each of the {count} requests, got "
                f"{got}"
            )
        for index, (request, place) in enumerate(zip(requests, places)):
            if place:
                results[index] = self._answer(request, [produced[row] for row in place])

    def _answer(self, request: Any, rows: list[Any]) -> Any:
        for one in rows:
            if isinstance(one, Exception):
                return _failure(request, one)
        try:
            return self._encode(request, rows)
        except Exception as error:  # of this request only
            return error


class AsyncBatches(Batches):
    """Calls a batchable coroutine function."""

    async def __call__(self, requests: Sequence[Any]) -> list[Any]:  # type: ignore[override]
        """Return the result of each request, or its error."""
        results, places, (args, kwargs) = self._gather(requests)
        if any(places):
            self._spread(requests, results, places, await self.target(*args, **kwargs))
        return results


class Streams(_Endpoint):
    """Runs a generator for each request, and sends each item as a response."""

    def __call__(self, requests: Sequence[Any]) -> Iterator[list[Any]]:
        """Yield the items for the only request."""
        (request,) = requests
        try:
            args, kwargs = self._decode(request)
            for item in self.target(*args, **kwargs):
                yield [self._encode(request, [item])]
        except HTTPError as error:
            yield [_failure(request, error)]


class AsyncStreams(_Endpoint):
    """Runs an asynchronous generator for each request, and sends each item as a response."""

    async def __call__(self, requests: Sequence[Any]) -> AsyncIterator[list[Any]]:
        """Yield the items for the only request."""
        (request,) = requests
        try:
            args, kwargs = self._decode(request)
            async for item in self.target(*args, **kwargs):
                yield [self._encode(request, [item])]
        except HTTPError as error:
            yield [_failure(request, error)]
