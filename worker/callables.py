"""The function that a pickled payload becomes: from a list of requests to a list of responses."""

from __future__ import annotations

import inspect
import platform
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pytriton.decorators.checking import misfit
from pytriton.ipc import messages
from pytriton.ipc.errors import shown
from pytriton.ipc.payload import unpack
from pytriton.ipc.wording import with_article
from pytriton.worker import project_modules
from pytriton.worker.memory_modules import load_payload

if TYPE_CHECKING:
    import asyncio

Infer = Callable[[Any], Any]


class LoadError(Exception):
    """The payload cannot be made a callable here; the text says why."""


def load_callable(payload: bytes, spec: messages.ModelSpec) -> Infer:
    """Unpickle a payload and return the callable to serve, as the registrant made it.

    A factory is called here, in the worker; a class is taken for a factory.

    Raises:
        LoadError: another Python version pickled it by value, or it is not callable.
        Exception: whatever unpickling or the factory raises.
    """
    return made(load_object(payload, spec), spec)


def made(loaded: Any, spec: messages.ModelSpec) -> Infer:
    """Return the callable to serve, of what was registered: called here if it is a factory or a class.

    Raises:
        LoadError: it is not callable.
        Exception: whatever the factory raises.
    """
    if spec.factory or inspect.isclass(loaded):
        loaded = loaded()
    if not callable(loaded):
        raise LoadError(
            f"model {spec.name}: what was registered gave {with_article(type(loaded).__name__)}, which is not "
            "callable"
        )
    why = misfit(loaded, [one["name"] for one in spec.config.get("input", ())])
    if why is not None:
        raise LoadError(f"model {spec.name}: {why}")
    return loaded  # type: ignore[no-any-return]


def run_check(payload: bytes, spec: messages.ModelSpec, infer: Infer) -> None:
    """Call the registrant's check with the loaded callable.

    Raises:
        LoadError: it returned False.
        Exception: whatever the check raises: then the callable must not serve.
    """
    checked(load_object(payload, spec), spec, infer)


def checked(check: Callable[[Infer], Any], spec: messages.ModelSpec, infer: Infer) -> None:
    """Call a check with the loaded callable; raises what `run_check` does."""
    if check(infer) is False:
        raise LoadError(f"model {spec.name}: check= returned False")


def load_object(payload: bytes, spec: messages.ModelSpec) -> Any:
    """Unpickle a payload.

    Raises:
        LoadError: another Python version pickled it by value.
        Exception: whatever unpickling raises.
    """
    header, _ = unpack(payload)
    ours = platform.python_version_tuple()[:2]
    theirs = header.python_version
    if not header.by_reference and tuple(map(int, ours)) != tuple(theirs):
        raise LoadError(
            f"model {spec.name} was pickled by Python {theirs[0]}.{theirs[1]} and its worker is Python "
            f"{'.'.join(ours)}: code that travels by value needs the same minor version. Put the callable "
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
        f" Modules in {', '.join(folders)} travel by value, because that interpreter does not find them: "
        f"register(..., sys_path={folders}) lets the worker import them."
    )


#: What one wants who writes a generator.
_DECOUPLED = "To answer piece by piece, register it with config=ModelConfig(decoupled=True)."


def synchronous(infer: Infer) -> tuple[Infer, asyncio.AbstractEventLoop | None]:
    """Wrap what returns a coroutine, a generator or an asynchronous generator into a plain function.

    Returns it with the event loop that it runs on, if it needs one.
    """
    target = infer if inspect.isroutine(infer) else type(infer).__call__
    if inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target):
        import asyncio  # few callables need it, and it takes 30 ms

        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        collect = _only_of_async if inspect.isasyncgenfunction(target) else _awaited
        return lambda requests: loop.run_until_complete(collect(infer(requests))), loop
    if inspect.isgeneratorfunction(target):
        return lambda requests: _only_of(list(infer(requests))), None
    return infer, None


async def _awaited(coroutine: Any) -> Any:
    return await coroutine


async def _only_of_async(generator: Any) -> Any:
    return _only_of([item async for item in generator])


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
