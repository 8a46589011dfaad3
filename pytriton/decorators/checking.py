"""Checks that a callable's signature accepts the arguments that workers will pass."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from pytriton._callables import call_signature, name_of
from pytriton.decorators import wrapping

__all__ = ["factory_problem", "signature_problem"]


def signature_problem(infer: Callable[..., Any], inputs: Iterable[str]) -> str | None:
    """Check that a callable can be called for a model with these inputs.

    Only pytriton's own decorators are unwrapped: others may change the arguments.

    Returns:
        the problem and its remedy, as text for an error message; None if there is no problem
    """
    function, owner = _function_of(infer)
    by_name, given = False, set(inputs)
    while _is_ours(function):
        adapter = wrapping.adapter_of(function)
        by_name = by_name or adapter.passes_inputs_by_name
        given |= adapter.added_keywords()
        function = function.__wrapped__
        if not inspect.isroutine(function):
            return None
    name = name_of(infer)
    try:
        signature = call_signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # e.g. of a builtin
        return None
    if by_name:
        why = _binding_error(signature, (None,) * owner, given)
        if why is None:
            return None
        return (
            f"{name}{signature} cannot be called with the model's inputs by name ({', '.join(sorted(given))}): {why}. "
            "Give its parameters the names of the inputs, or use **inputs."
        )
    why = _binding_error(signature, (None,) * (owner + 1), ())
    if why is None:
        return None
    remedy = "decorate it with @batch, which passes inputs by name"
    if _binding_error(signature, (None,) * owner, ()) is None:
        remedy = "if it creates the callable, register it with factory=True"
    return f"{name}{signature} cannot be called with a list of requests: {why}; {remedy}."


def factory_problem(factory: Callable[..., Any]) -> str | None:
    """Check that a factory can be called without arguments.

    Returns:
        the problem and its remedy, as text for an error message; None if there is no problem
    """
    function, owner = _function_of(factory)
    name = name_of(factory)
    if _is_ours(function):
        return (
            f"{name} is decorated as a callable that takes requests, but factory=True calls it without arguments; "
            "leave out factory=True, or register the function that creates the callable"
        )
    if not inspect.isfunction(function):  # a class or a partial, whose own error is clear enough
        return None
    signature = call_signature(function, follow_wrapped=False)
    why = _binding_error(signature, (None,) * owner, ())
    if why is None:
        return None
    return (
        f"{name}{signature} cannot be called without arguments, as factory=True does: {why}; "
        "leave out factory=True if it is the callable itself"
    )


def _function_of(infer: Any) -> tuple[Any, int]:
    """Return the function that a call to `infer` runs, and the number of its bound arguments (1 for `self`, or 0)."""
    if inspect.ismethod(infer):
        return infer.__func__, 1
    if isinstance(infer, functools.partial) or inspect.isroutine(infer) or inspect.isclass(infer):
        return infer, 0
    call = inspect.getattr_static(type(infer), "__call__", None)
    return (call, 1) if inspect.isfunction(call) else (infer, 0)


def _is_ours(function: Any) -> bool:
    return inspect.isfunction(function) and function.__globals__ is vars(wrapping)


def _binding_error(
    signature: inspect.Signature, args: tuple[Any, ...], names: Iterable[str]
) -> str | None:
    try:
        signature.bind(*args, **dict.fromkeys(names))
    except TypeError as error:
        return str(error)
    return None
