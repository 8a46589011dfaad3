"""Checks that a callable's signature accepts the arguments that it will be called with."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from pytriton.decorators import wrapping

__all__ = ["factory_misfit", "misfit"]


def misfit(infer: Callable[..., Any], inputs: Iterable[str]) -> str | None:
    """Return why a callable does not suit a model with these inputs, and the remedy; None if no problem is found.

    Only our own decorators are unwrapped: others may call what they decorate in any way.
    """
    function, owner = _function_of(infer)
    by_name, given = False, set(inputs)
    while _is_ours(function):
        adapter = wrapping.adapter_of(function)
        by_name = by_name or adapter.names_inputs
        given |= adapter.handed_over()
        function = function.__wrapped__
        if not inspect.isroutine(function):
            return None
    name = getattr(infer, "__name__", type(infer).__name__)
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # e.g. of a builtin
        return None
    if by_name:
        why = _cannot(signature, (None,) * owner, given)
        if why is None:
            return None
        return (
            f"{name}{signature} cannot be called with the model's inputs by name ({', '.join(sorted(given))}): {why}. "
            "Parameters have to be named as inputs are, or be **inputs."
        )
    why = _cannot(signature, (None,) * (owner + 1), ())
    if why is None:
        return None
    way = "decorate it with @batch, which passes inputs by name"
    if _cannot(signature, (None,) * owner, ()) is None:
        way = "if it makes the callable, register it with factory=True"
    return f"{name}{signature} cannot be called with a list of requests: {why}; {way}."


def factory_misfit(factory: Callable[..., Any]) -> str | None:
    """Return why a factory cannot be called without arguments, and the remedy; None if no problem is found."""
    function, owner = _function_of(factory)
    name = getattr(factory, "__name__", type(factory).__name__)
    if _is_ours(function):
        return (
            f"{name} is decorated as a callable that takes requests, and factory=True calls it without arguments; "
            "leave factory=True out, or register the function that makes it"
        )
    if not inspect.isfunction(function):  # a class or a partial, whose error is clear enough
        return None
    signature = inspect.signature(function, follow_wrapped=False)
    why = _cannot(signature, (None,) * owner, ())
    if why is None:
        return None
    return (
        f"{name}{signature} cannot be called without arguments, as factory=True does: {why}; "
        "leave factory=True out if it is the callable itself"
    )


def _function_of(infer: Any) -> tuple[Any, int]:
    """Return the called function, and the number of arguments bound before the first: the object of a method."""
    if inspect.ismethod(infer):
        return infer.__func__, 1
    if isinstance(infer, functools.partial) or inspect.isroutine(infer) or inspect.isclass(infer):
        return infer, 0
    call = inspect.getattr_static(type(infer), "__call__", None)
    return (call, 1) if inspect.isfunction(call) else (infer, 0)


def _is_ours(function: Any) -> bool:
    return inspect.isfunction(function) and function.__globals__ is vars(wrapping)


def _cannot(
    signature: inspect.Signature, args: tuple[Any, ...], names: Iterable[str]
) -> str | None:
    try:
        signature.bind(*args, **dict.fromkeys(names))
    except TypeError as error:
        return str(error)
    return None
