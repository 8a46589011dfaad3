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
from pytriton.typed.bodies import Arguments, RequestDecoder, ResultEncoder, media_type_of
from pytriton.typed.problems import Problem, problem_document
from pytriton.typed.schema import operation_of
from pytriton.typed.signature import Signature, signature_of

__all__ = ["BODY", "CONTENT_TYPE", "ROUTE", "TypedModel", "make_model", "model_of", "served"]

Decode = Callable[[bytes, str], Arguments]

#: The input and the output of every typed model.
BODY = "body"
#: Request parameters set by the frontend: the body's Content-Type, and a flag for requests sent to the model's route.
CONTENT_TYPE, ROUTE = "content_type", "route"

_INPUTS = [Tensor(name=BODY, dtype=bytes, shape=(1,))]
_OUTPUTS = [Tensor(name=BODY, dtype=bytes, shape=(1,))]


class TypedModel(NamedTuple):
    """The callables and tensors that are registered in place of the user's functions.

    Attributes:
        targets: one callable for each of the user's functions
        inputs: the body of the request
        outputs: the body of the response
        config: the user's configuration, with the batching and streaming that the function needs
        factory: whether the targets create callables in the worker
        signature: the function's parameters and result
    """

    targets: list[Any]
    inputs: list[Tensor]
    outputs: list[Tensor]
    config: ModelConfig
    factory: bool
    signature: Signature

    def route(self, path: str) -> WebRoute:
        """Return the description of the model's HTTP route.

        Raises:
            PyTritonValidationError: the path is invalid, or a type cannot be represented in JSON
        """
        try:
            routes.check(path)
        except ValueError as error:
            raise PyTritonValidationError(f"{self.signature.name}: {error}") from None
        operation, schemas = operation_of(self.signature)
        media_type = media_type_of(self.signature.result)
        return WebRoute(path, media_type, self.signature.streams, operation, schemas)


def make_model(targets: Sequence[Any], config: ModelConfig | None, *, factory: bool) -> TypedModel:
    """Return what to register for typed functions.

    Args:
        targets: functions, methods, callable objects, or classes of them; one for each instance
        config: the user's configuration; batching is set by `@batchable` and streaming by the function itself
        factory: whether `targets` create the functions. Since they are called only in the worker, their return type
            must be annotated as a class with a typed `__call__`

    Raises:
        PyTritonValidationError: the annotations or the configuration are invalid
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
    for one in (*(parameter.type for parameter in signature.parameters), signature.result):
        _resolve_fields(one, set())
    made = factory or any(inspect.isclass(target) for target in targets)
    wrapped = [Made(one, signature) if made else served(one, signature) for one in targets]
    return TypedModel(
        wrapped, _INPUTS, _OUTPUTS, _configuration(signature, config), made, signature
    )


def model_of(signature: Signature) -> TypedModel:
    """Return the tensors and the configuration of a function that only workers can make."""
    return TypedModel([], _INPUTS, _OUTPUTS, _configuration(signature, None), True, signature)


def _resolve_fields(annotation: Any, seen: set[type]) -> None:
    """Replace the annotations that are text in the classes of a type, such as those of a dataclass.

    A class of a script is pickled without the imports of the script, so the worker could not resolve them.
    """
    for one in typing.get_args(annotation):
        _resolve_fields(one, seen)
    if (
        not isinstance(annotation, type)
        or annotation in seen
        or hasattr(annotation, "model_fields")
    ):
        return
    seen.add(annotation)
    for base in annotation.__mro__:
        fields = vars(base).get("__annotations__", {})
        if not any(isinstance(one, (str, typing.ForwardRef)) for one in fields.values()):
            hints = fields
        else:
            try:
                hints = typing.get_type_hints(base, include_extras=True)
            except Exception:
                continue  # A name that only type checkers import. The worker reports it if it needs the type.
            base.__annotations__ = {name: hints[name] for name in fields}
        for name in fields:
            _resolve_fields(hints[name], seen)


def _made_by(factory: Any) -> Any:
    if inspect.isclass(factory):
        return factory
    returned = typing.get_type_hints(factory).get("return")
    if inspect.isclass(returned) and "__call__" in dir(returned):
        return returned
    raise PyTritonValidationError(
        f"{factory!r} creates the function in the worker, so its signature is not known here. Annotate what it returns "
        "as a class with a typed __call__, or pass inputs= and outputs= to serve tensors."
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
    """A factory that wraps the function created by the user's factory, in the worker."""

    def __init__(self, factory: Callable[[], Any], signature: Signature) -> None:
        self.factory = factory
        self.signature = signature

    def __call__(self) -> Any:
        """Return the inference callable."""
        made = self.factory()
        if inspect.isawaitable(made):
            return self._awaited(made)
        return served(made, self.signature)

    async def _awaited(self, made: Any) -> Any:
        return served(await made, self.signature)


def served(target: Any, signature: Signature, decode: Decode | None = None) -> Any:
    """Return the inference callable that wraps a typed function.

    Args:
        target: the function
        signature: what it takes and returns
        decode: returns the arguments that a body contains, given its Content-Type; None: as the signature says
    """
    is_batched = signature.batching is not None
    kinds: dict[Kind, type[_Endpoint]] = {
        Kind.FUNCTION: Batches if is_batched else Calls,
        Kind.COROUTINE: AsyncBatches if is_batched else AsyncCalls,
        Kind.GENERATOR: Streams,
        Kind.ASYNC_GENERATOR: AsyncStreams,
    }
    return kinds[signature.kind](target, signature, decode)


class _Endpoint:
    """Inference callable that wraps a typed function. The two are pickled together."""

    def __init__(
        self, target: Callable[..., Any], signature: Signature, decode: Decode | None = None
    ) -> None:
        self.target = target
        self.signature = signature
        self._prepare(decode)

    def _prepare(self, decode: Decode | None = None) -> None:
        self._decode_body = decode or RequestDecoder(self.signature).decode
        self._encoder = ResultEncoder(self.signature.result)

    def __getstate__(self) -> dict[str, Any]:
        return {"target": self.target, "signature": self.signature}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()  # in the worker, with the types of its environment

    def _decode(self, request: Any) -> Arguments:
        (body,) = request[BODY].ravel()
        return self._decode_body(
            body, (request.parameters or {}).get(CONTENT_TYPE, "application/json")
        )

    def _encode(self, result: Any) -> dict[str, Any]:
        body = np.empty((1, 1), object)
        body[0, 0] = self._encoder.encode(result)
        return {BODY: body}


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
            return self._encode(self.target(*args, **kwargs))
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
            return self._encode(await self.target(*args, **kwargs))
        except HTTPError as error:
            return _failure(request, error)


class Batches(_Endpoint):
    """Calls a batchable function once for all requests whose bodies are valid."""

    def __call__(self, requests: Sequence[Any]) -> list[Any]:
        """Return the result of each request, or its error."""
        results, valid, kwargs = self._gather(requests)
        if valid:
            self._spread(requests, results, valid, self.target(**kwargs))
        return results

    def _gather(self, requests: Sequence[Any]) -> tuple[list[Any], list[int], dict[str, list[Any]]]:
        results: list[Any] = [None] * len(requests)
        valid: list[int] = []
        columns: dict[str, list[Any]] = {one.name: [] for one in self.signature.parameters}
        for index, request in enumerate(requests):
            try:
                _, kwargs = self._decode(request)
            except Problem as error:
                results[index] = _failure(request, error)
                continue
            valid.append(index)
            for parameter in self.signature.parameters:
                columns[parameter.name].append(kwargs.get(parameter.name, parameter.default))
        return results, valid, columns

    def _spread(
        self, requests: Sequence[Any], results: list[Any], valid: list[int], produced: Any
    ) -> None:
        if not isinstance(produced, (list, tuple, np.ndarray)) or len(produced) != len(valid):
            got = (
                f"{len(produced)} results" if hasattr(produced, "__len__") else f"{produced!r:.100}"
            )
            raise ValueError(
                f"{self.signature.name} must return a list with one result for each of the {len(valid)} requests, got "
                f"{got}"
            )
        for index, one in zip(valid, produced):
            if isinstance(one, Exception):
                results[index] = _failure(requests[index], one)
            else:
                results[index] = self._encode(one)


class AsyncBatches(Batches):
    """Calls a batchable coroutine function."""

    async def __call__(self, requests: Sequence[Any]) -> list[Any]:  # type: ignore[override]
        """Return the result of each request, or its error."""
        results, valid, kwargs = self._gather(requests)
        if valid:
            self._spread(requests, results, valid, await self.target(**kwargs))
        return results


class Streams(_Endpoint):
    """Runs a generator for each request, and sends each item as a response."""

    def __call__(self, requests: Sequence[Any]) -> Iterator[list[Any]]:
        """Yield the items for the only request."""
        (request,) = requests
        try:
            args, kwargs = self._decode(request)
            for item in self.target(*args, **kwargs):
                yield [self._encode(item)]
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
                yield [self._encode(item)]
        except HTTPError as error:
            yield [_failure(request, error)]
