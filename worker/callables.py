"""Loads the registered callable, and checks that it can be served."""

from __future__ import annotations

import inspect
import platform
from collections.abc import Callable, Mapping
from typing import Any

from pytriton._callables import called_function, unwrap_partials
from pytriton._protocol import messages
from pytriton._protocol.arguments import with_article
from pytriton._protocol.errors import shown
from pytriton._protocol.payload import unpack
from pytriton.decorators.checking import signature_problem
from pytriton.decorators.wrapping import ASYNCHRONOUS, Kind, kind_of
from pytriton.worker import project_modules
from pytriton.worker.memory_modules import load_payload

Infer = Callable[[Any], Any]


class LoadError(Exception):
    """The registered object cannot be loaded or served; the text says why."""


def create_callable(loaded: Any, spec: messages.ModelSpec) -> Infer:
    """Return the callable to serve: the registered object or, if that is a factory or a class, what it returns.

    Raises:
        LoadError: the result is not callable, or does not accept the model's inputs.
        Exception: anything that the factory raises.
    """
    if spec.factory or inspect.isclass(loaded):
        loaded = _call_factory(loaded)
    if not callable(loaded):
        raise LoadError(
            f"model {spec.name}: the registered object returned {with_article(type(loaded).__name__)}, which is not "
            "callable"
        )
    why = signature_problem(loaded, [one["name"] for one in spec.config.get("input", ())])
    if why is not None:
        raise LoadError(f"model {spec.name}: {why}")
    return loaded  # type: ignore[no-any-return]


def _call_factory(factory: Callable[[], Any]) -> Any:
    """Call a factory. If the factory, or the class's `__call__`, is asynchronous, call it on the worker's event loop.

    There, it can start tasks and open sessions. A plain function is called without a loop, because it may run its own.
    """
    target: Any = unwrap_partials(factory)
    while hasattr(target, "__wrapped__"):
        target = unwrap_partials(target.__wrapped__)
    if kind_of(called_function(target)) in ASYNCHRONOUS:
        return _run_on_event_loop(_create(factory))
    created = factory()
    return _run_on_event_loop(created) if inspect.iscoroutine(created) else created


async def _create(factory: Callable[[], Any]) -> Any:
    created = factory()
    return await created if inspect.isawaitable(created) else created


def _run_on_event_loop(awaitable: Any) -> Any:
    from pytriton.worker import event_loops  # it imports asyncio, which takes 30 ms

    return event_loops.run(awaitable)


def run_check(check: Callable[[Infer], Any], spec: messages.ModelSpec, infer: Infer) -> None:
    """Call the registrant's check with the loaded callable.

    Raises:
        LoadError: the check returned False.
        Exception: anything that the check raises; the callable must not be served.
    """
    result = check(infer)
    if inspect.iscoroutine(result):
        result = _run_on_event_loop(result)
    if result is False:
        raise LoadError(f"model {spec.name}: check= returned False")


def load_object(payload: bytes, spec: messages.ModelSpec) -> Any:
    """Unpickle a payload.

    Raises:
        LoadError: it contains code that another Python version pickled by value.
        Exception: anything that unpickling raises.
    """
    header, _ = unpack(payload)
    ours = platform.python_version_tuple()[:2]
    theirs = header.python_version
    if not header.by_reference and tuple(map(int, ours)) != tuple(theirs):
        raise LoadError(
            f"model {spec.name} was pickled by Python {theirs[0]}.{theirs[1]}, but its worker runs Python "
            f"{'.'.join(ours)}: code pickled by value needs the same minor version. Put the callable "
            "into a module that the worker can import, or set python= to an interpreter of the version that pickled it."
            + _sys_path_hint(header.folders)
        )
    project_modules.use(header.sources)
    project_modules.show(header.lines)
    return load_payload(payload)


def _sys_path_hint(folders: list[str]) -> str:
    if not folders:
        return ""
    return (
        f" Modules in {', '.join(folders)} are pickled by value, because that interpreter does not find them: "
        f"register(..., sys_path={folders}) lets the worker import them."
    )


_DECOUPLED = "To stream answers, register it with config=ModelConfig(decoupled=True)."


def synchronous(infer: Infer) -> Infer:
    """Wrap a generator function so that it returns the only value it yields; return any other callable unchanged."""
    if kind_of(infer) is Kind.GENERATOR:
        return lambda requests: _only_result(list(infer(requests)))
    return infer


async def awaited(produced: Any) -> Any:
    """Await the result of an asynchronous callable; for an asynchronous generator, return the only value it yields."""
    if hasattr(produced, "__aiter__"):
        return _only_result([item async for item in produced])
    return await produced


def _only_result(items: list[Any]) -> Any:
    if len(items) != 1:
        raise ValueError(
            f"the callable yielded {len(items)} times; a model that is not decoupled answers exactly once. {_DECOUPLED}"
        )
    if isinstance(items[0], Mapping):
        raise ValueError(
            f"the callable is a generator, and yielded {shown(items[0])}; a model that is not decoupled yields one "
            f"list with a dict for each request. {_DECOUPLED}"
        )
    return items[0]
