"""Turns a pickled payload into a function from a list of requests to a list of responses."""

from __future__ import annotations

import functools
import inspect
import platform
from collections.abc import Callable, Mapping
from typing import Any

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
    """The payload cannot be turned into a callable; the text says why."""


def load_callable(payload: bytes, spec: messages.ModelSpec) -> Infer:
    """Unpickle a payload and return the callable to serve, as the registrant created it.

    A factory is called here, in the worker; a class counts as a factory.

    Raises:
        LoadError: another Python version pickled it by value, or it is not callable.
        Exception: anything that unpickling or the factory raises.
    """
    return made(load_object(payload, spec), spec)


def made(loaded: Any, spec: messages.ModelSpec) -> Infer:
    """Return the callable to serve. Calls the registered object if it is a factory or a class.

    Raises:
        LoadError: it is not callable.
        Exception: anything that the factory raises.
    """
    if spec.factory or inspect.isclass(loaded):
        loaded = _make(loaded)
    if not callable(loaded):
        raise LoadError(
            f"model {spec.name}: the registered object returned {with_article(type(loaded).__name__)}, which is not "
            "callable"
        )
    why = signature_problem(loaded, [one["name"] for one in spec.config.get("input", ())])
    if why is not None:
        raise LoadError(f"model {spec.name}: {why}")
    return loaded  # type: ignore[no-any-return]


def _make(factory: Callable[[], Any]) -> Any:
    """Call a factory. An asynchronous one, or a class of asynchronous callables, runs on the event loop that serves
    them.

    So it can start tasks and open sessions. A plain function is called without a loop: it may run its own.
    """
    target: Any = factory
    while hasattr(target, "__wrapped__") or isinstance(target, functools.partial):
        target = target.func if isinstance(target, functools.partial) else target.__wrapped__
    call = inspect.getattr_static(target, "__call__", None) if inspect.isclass(target) else target
    if callable(call) and kind_of(call) in ASYNCHRONOUS:
        from pytriton.worker import event_loops

        return event_loops.run(_made_by(factory))
    loaded = factory()
    return _result(loaded) if inspect.iscoroutine(loaded) else loaded


async def _made_by(factory: Callable[[], Any]) -> Any:
    made = factory()
    return await made if inspect.isawaitable(made) else made


def _result(awaitable: Any) -> Any:
    from pytriton.worker import event_loops

    return event_loops.run(awaitable)


def run_check(payload: bytes, spec: messages.ModelSpec, infer: Infer) -> None:
    """Call the registrant's check with the loaded callable.

    Raises:
        LoadError: the check returned False.
        Exception: anything that the check raises: the callable must not serve.
    """
    checked(load_object(payload, spec), spec, infer)


def checked(check: Callable[[Infer], Any], spec: messages.ModelSpec, infer: Infer) -> None:
    """Call a check with the loaded callable. Raises the same exceptions as `run_check`."""
    said = check(infer)
    if inspect.iscoroutine(said):
        said = _result(said)
    if said is False:
        raise LoadError(f"model {spec.name}: check= returned False")


def load_object(payload: bytes, spec: messages.ModelSpec) -> Any:
    """Unpickle a payload.

    Raises:
        LoadError: another Python version pickled it by value.
        Exception: anything that unpickling raises.
    """
    header, _ = unpack(payload)
    ours = platform.python_version_tuple()[:2]
    theirs = header.python_version
    if not header.by_reference and tuple(map(int, ours)) != tuple(theirs):
        raise LoadError(
            f"model {spec.name} was pickled by Python {theirs[0]}.{theirs[1]}, but its worker runs Python "
            f"{'.'.join(ours)}: code pickled by value needs the same minor version. Put the callable "
            "into a module that the worker can import, or let python= name an interpreter of that version."
            + _way_to(header.folders)
        )
    project_modules.use(header.sources)
    project_modules.show(header.lines)
    return load_payload(payload)


def _way_to(folders: list[str]) -> str:
    if not folders:
        return ""
    return (
        f" Modules in {', '.join(folders)} are pickled by value, because that interpreter does not find them: "
        f"register(..., sys_path={folders}) lets the worker import them."
    )


#: Advice for generators.
_DECOUPLED = "To answer piece by piece, register it with config=ModelConfig(decoupled=True)."


def synchronous(infer: Infer) -> Infer:
    """Return a generator function as a plain one; any other callable unchanged."""
    if kind_of(infer) is Kind.GENERATOR:
        return lambda requests: _only_of(list(infer(requests)))
    return infer


async def awaited(produced: Any) -> Any:
    """Await the answer of an asynchronous callable that answers once. For a generator, return its only result."""
    if hasattr(produced, "__aiter__"):
        return _only_of([item async for item in produced])
    return await produced


def _only_of(items: list[Any]) -> Any:
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
