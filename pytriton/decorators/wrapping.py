"""The base of all decorators, which wrap a callable of any kind and preserve its kind.

A decorator is an `Adapter`. For each call to the decorated callable, its `plan` defines which calls to the wrapped
callable to make and how to merge their results::

    requests ──plan──▶ [call, call, ...] ──wrapped callable──▶ [result, ...] ──merge──▶ responses

The four wrappers below execute the plan for functions, coroutine functions, generators and
asynchronous generators. They are plain nested functions, not `wrapt` proxies: methods bind, `inspect`
reports the right kind, and cloudpickle pickles them like any function, all without extra code, whereas a
`wrapt` proxy costs more on every request. Each wrapper only calls a function of this module, so that no
logic is pickled by value together with a callable.

For a method, `self` is the first positional argument and is passed on unchanged.
"""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, cast

from pytriton._callables import called_function, unwrap_partials
from pytriton.decorators.context import CONTEXT_ATTRIBUTE
from pytriton.exceptions import PyTritonRuntimeError, PyTritonValidationError

__all__ = [
    "ASYNCHRONOUS",
    "Adapter",
    "Call",
    "Decorator",
    "Kind",
    "Merge",
    "Plan",
    "decorate",
    "kind_of",
    "single_result",
]

Call = tuple[tuple[Any, ...], dict[str, Any]]
Merge = Callable[[list[Any]], Any]
Plan = tuple[list[Call], Merge]

_DEFERRED = (CoroutineType, GeneratorType, AsyncGeneratorType)
_END = object()


class Kind(enum.Enum):
    """A kind of callable: function, coroutine function, generator or asynchronous generator."""

    FUNCTION = "function"
    COROUTINE = "coroutine function"
    GENERATOR = "generator"
    ASYNC_GENERATOR = "asynchronous generator"


#: The kinds that need an event loop.
ASYNCHRONOUS = (Kind.COROUTINE, Kind.ASYNC_GENERATOR)


def kind_of(callable_: Callable[..., Any]) -> Kind:
    """Return the kind of a function, method, `functools.partial`, or object with ``__call__``."""
    callable_ = unwrap_partials(callable_)
    if not inspect.isclass(callable_):
        callable_ = called_function(callable_)
    if inspect.isasyncgenfunction(callable_):
        return Kind.ASYNC_GENERATOR
    if inspect.iscoroutinefunction(callable_):
        return Kind.COROUTINE
    if inspect.isgeneratorfunction(callable_):
        return Kind.GENERATOR
    return Kind.FUNCTION


class Adapter:
    """A decorator with its settings. Must be picklable, because it is sent to the worker with the callable."""

    def plan(self, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Plan:
        """Return the calls to make and the function that merges their results.

        Args:
            wrapped: the decorated callable, used to find the model's configuration
            args: positional arguments: `self` for a method, then the list of requests if
                this decorator is above ``@batch``
            kwargs: inputs by name, if this decorator is below ``@batch``
        """
        raise NotImplementedError

    #: Whether this decorator passes inputs by name instead of requests.
    passes_inputs_by_name = False

    def added_keywords(self) -> set[str]:
        """Return the names of the keyword arguments that this decorator adds to the call."""
        return set()


class Decorator:
    """A decorator whose settings have been applied. Unlike a closure, it can be pickled."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def __call__(self, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        return decorate(wrapped, self._adapter)


def adapter_of(wrapper: Any) -> Adapter:
    """Return the adapter from the closure of a function that `decorate` returned."""
    cells = dict(zip(wrapper.__code__.co_freevars, wrapper.__closure__))
    adapter: Adapter = cells["adapter"].cell_contents
    return adapter


def single_result(results: list[Any]) -> Any:
    """Merge function that returns the result of the only call."""
    return results[0]


def decorate(wrapped: Any, adapter: Adapter) -> Callable[..., Any]:
    """Wrap a callable in the wrapper for its kind.

    Raises:
        PyTritonValidationError: `wrapped` is not callable
    """
    if isinstance(wrapped, (staticmethod, classmethod)):
        rewrapped: Any = type(wrapped)(decorate(wrapped.__func__, adapter))
        return cast(Callable[..., Any], rewrapped)
    if not callable(wrapped):
        raise PyTritonValidationError(
            f"Only a callable can be decorated, got {wrapped!r}. Pass a decorator's settings as "
            "keyword arguments, e.g. @batch(parameters=True)."
        )
    wrapper = _WRAPPERS[kind_of(wrapped)](wrapped, adapter)
    # Do not copy the attributes of a callable object, which may include a model's state.
    updated = functools.WRAPPER_UPDATES if inspect.isfunction(wrapped) else ()
    return functools.update_wrapper(wrapper, wrapped, updated=updated)


def _wrap_function(wrapped: Callable[..., Any], adapter: Adapter) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return _run(wrapper, wrapped, adapter, args, kwargs)

    return wrapper


def _wrap_coroutine(wrapped: Callable[..., Any], adapter: Adapter) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await _run_async(wrapper, wrapped, adapter, args, kwargs)

    return wrapper


def _wrap_generator(wrapped: Callable[..., Any], adapter: Adapter) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Iterator[Any]:
        yield from _run_stream(wrapper, wrapped, adapter, args, kwargs)

    return wrapper


def _wrap_async_generator(wrapped: Callable[..., Any], adapter: Adapter) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        stream = _run_async_stream(wrapper, wrapped, adapter, args, kwargs)
        try:
            async for result in stream:
                yield result
        finally:
            await stream.aclose()

    return wrapper


_WRAPPERS: dict[Kind, Callable[[Callable[..., Any], Adapter], Callable[..., Any]]] = {
    Kind.FUNCTION: _wrap_function,
    Kind.COROUTINE: _wrap_coroutine,
    Kind.GENERATOR: _wrap_generator,
    Kind.ASYNC_GENERATOR: _wrap_async_generator,
}


def _plan(
    wrapper: Callable[..., Any],
    wrapped: Callable[..., Any],
    adapter: Adapter,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Plan:
    if CONTEXT_ATTRIBUTE in wrapper.__dict__ and inspect.isfunction(wrapped):
        # A context set manually on the outer layer also applies to the layers below it.
        wrapped.__dict__[CONTEXT_ATTRIBUTE] = wrapper.__dict__[CONTEXT_ATTRIBUTE]
    return adapter.plan(wrapper, args, kwargs)


def _run(
    wrapper: Callable[..., Any],
    wrapped: Callable[..., Any],
    adapter: Adapter,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    calls, merge = _plan(wrapper, wrapped, adapter, args, kwargs)
    results = [wrapped(*call_args, **call_kwargs) for call_args, call_kwargs in calls]
    if results and isinstance(results[0], _DEFERRED):
        return _merge_deferred(results, merge)
    return merge(results)


def _merge_deferred(results: list[Any], merge: Merge) -> Any:
    # Before the call, a lambda that calls a coroutine function or a generator looks like a plain function.
    if isinstance(results[0], CoroutineType):
        return _merge_awaited(results, merge)
    if isinstance(results[0], GeneratorType):
        return _merge_streams(results, merge)
    return _merge_async_streams(results, merge)


async def _run_async(
    wrapper: Callable[..., Any],
    wrapped: Callable[..., Any],
    adapter: Adapter,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    calls, merge = _plan(wrapper, wrapped, adapter, args, kwargs)
    return merge([await wrapped(*call_args, **call_kwargs) for call_args, call_kwargs in calls])


async def _merge_awaited(coroutines: list[Any], merge: Merge) -> Any:
    try:
        return merge([await coroutine for coroutine in coroutines])
    finally:
        for coroutine in coroutines:
            coroutine.close()


def _run_stream(
    wrapper: Callable[..., Any],
    wrapped: Callable[..., Any],
    adapter: Adapter,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Iterator[Any]:
    calls, merge = _plan(wrapper, wrapped, adapter, args, kwargs)
    streams = [wrapped(*call_args, **call_kwargs) for call_args, call_kwargs in calls]
    yield from _merge_streams(streams, merge)


def _merge_streams(streams: list[Any], merge: Merge) -> Iterator[Any]:
    try:
        while True:
            results = [next(stream, _END) for stream in streams]
            if _all_ended(results):
                return
            yield merge(results)
    finally:
        for stream in streams:
            stream.close()


async def _run_async_stream(
    wrapper: Callable[..., Any],
    wrapped: Callable[..., Any],
    adapter: Adapter,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    calls, merge = _plan(wrapper, wrapped, adapter, args, kwargs)
    streams = [wrapped(*call_args, **call_kwargs) for call_args, call_kwargs in calls]
    merged = _merge_async_streams(streams, merge)
    try:
        async for result in merged:
            yield result
    finally:
        await merged.aclose()


async def _merge_async_streams(streams: list[Any], merge: Merge) -> Any:
    try:
        while True:
            results = [await _next_of(stream) for stream in streams]
            if _all_ended(results):
                return
            yield merge(results)
    finally:
        for stream in streams:
            await stream.aclose()


async def _next_of(stream: Any) -> Any:
    try:
        return await stream.__anext__()
    except StopAsyncIteration:
        return _END


def _all_ended(results: list[Any]) -> bool:
    ended = [result is _END for result in results]
    if any(ended) and not all(ended):
        raise PyTritonRuntimeError(
            "The requests of this batch were split into groups, and the groups' generators yielded "
            "different numbers of results. They must yield the same number, because each result "
            "contains a response for every request of the batch."
        )
    return all(ended)
