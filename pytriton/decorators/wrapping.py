"""The base of all decorators: they wrap a callable of any kind and preserve its kind.

A decorator is an `Adapter`. For one call of the decorated callable, its `plan` defines which calls of
the wrapped one to make and how to merge their results::

    requests ──plan──▶ [call, call, ...] ──wrapped callable──▶ [result, ...] ──merge──▶ responses

The four wrappers below execute the plan for functions, coroutine functions, generators and
asynchronous generators. They are plain nested functions, not `wrapt` proxies: that way methods
bind, `inspect` sees the kind, and cloudpickle handles them as any function, without code of ours;
and a proxy costs more on every request. Each only calls a function of this module, so none of our
logic is pickled by value with a callable.

A method's object is the first positional argument and is passed on unchanged.
"""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, cast

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
    "only",
]

Call = tuple[tuple[Any, ...], dict[str, Any]]
Merge = Callable[[list[Any]], Any]
Plan = tuple[list[Call], Merge]

_LATE = (CoroutineType, GeneratorType, AsyncGeneratorType)
_END = object()


class Kind(enum.Enum):
    """The kinds of callables, by what a call of them returns."""

    FUNCTION = "function"
    COROUTINE = "coroutine function"
    GENERATOR = "generator"
    ASYNC_GENERATOR = "asynchronous generator"


#: The kinds that need an event loop.
ASYNCHRONOUS = (Kind.COROUTINE, Kind.ASYNC_GENERATOR)


def kind_of(callable_: Callable[..., Any]) -> Kind:
    """Return the kind of a function, method, partial, or object with ``__call__``."""
    while isinstance(callable_, functools.partial):
        callable_ = callable_.func
    if not (inspect.isroutine(callable_) or inspect.isclass(callable_)):
        # As in a call, only the type's own __call__ counts.
        callable_ = getattr(type(callable_), "__call__", callable_)  # noqa: B004
    if inspect.isasyncgenfunction(callable_):
        return Kind.ASYNC_GENERATOR
    if inspect.iscoroutinefunction(callable_):
        return Kind.COROUTINE
    if inspect.isgeneratorfunction(callable_):
        return Kind.GENERATOR
    return Kind.FUNCTION


class Adapter:
    """One decorator with its settings. Must be picklable, since it is sent along with the callable."""

    def plan(self, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Plan:
        """Return the calls to make and the function that merges their results.

        Args:
            wrapped: the decorated callable, used to find the model's configuration
            args: positional arguments: the method's object, if any, then the list of requests, if
                this decorator stands above ``@batch``
            kwargs: inputs by name, if it stands below
        """
        raise NotImplementedError

    #: Whether it passes inputs by name instead of requests.
    names_inputs = False

    def handed_over(self) -> set[str]:
        """Return the names of the keyword arguments that it adds."""
        return set()


class Decorator:
    """A decorator with its settings applied; an object, so that one stored in a variable can be pickled."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def __call__(self, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        return decorate(wrapped, self._adapter)


def adapter_of(wrapper: Any) -> Adapter:
    """Return the adapter of one of the wrappers below."""
    cells = dict(zip(wrapper.__code__.co_freevars, wrapper.__closure__))
    adapter: Adapter = cells["adapter"].cell_contents
    return adapter


def only(results: list[Any]) -> Any:
    """Return the result of a single call, which needs no merging."""
    return results[0]


def decorate(wrapped: Any, adapter: Adapter) -> Callable[..., Any]:
    """Wrap a callable of any kind.

    Raises:
        PyTritonValidationError: `wrapped` is not callable
    """
    if isinstance(wrapped, (staticmethod, classmethod)):
        rewrapped: Any = type(wrapped)(decorate(wrapped.__func__, adapter))
        return cast(Callable[..., Any], rewrapped)
    if not callable(wrapped):
        raise PyTritonValidationError(
            f"Only a callable can be decorated, got {wrapped!r}. Settings of a decorator are "
            "keyword arguments, e.g. @batch(parameters=True)."
        )
    wrapper = _WRAPPERS[kind_of(wrapped)](wrapped, adapter)
    # Do not copy the attributes of a callable object: that would copy a model's state.
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
        # A context set manually on the outer layer applies to those below it, too.
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
    if results and isinstance(results[0], _LATE):
        return _merge_late(results, merge)
    return merge(results)


def _merge_late(results: list[Any], merge: Merge) -> Any:
    # A lambda that calls a coroutine function or a generator cannot be recognised from outside.
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
            "The requests of this batch were split into groups whose generators gave different "
            "numbers of results; they have to give the same number, as every result answers every "
            "request of the batch."
        )
    return all(ended)
