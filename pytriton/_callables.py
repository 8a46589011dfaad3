"""Finds the name of a callable and the function that calling it runs, for decorators, registration and workers alike.

Users register functions, methods, classes, objects with ``__call__``, and `functools.partial` of all these.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

if sys.version_info >= (3, 14):
    from annotationlib import Format  # novm

__all__ = ["call_signature", "called_function", "name_of", "unwrap_partials"]


def unwrap_partials(target: Any) -> Any:
    """Return the callable inside any number of `functools.partial` objects."""
    while isinstance(target, functools.partial):
        target = target.func
    return target


def called_function(target: Any) -> Any:
    """Return the function that a call runs. Partials are unwrapped, other decorators are not.

    For an object, this is the ``__call__`` of its class, since Python ignores one of the instance. For a class it is the
    ``__call__`` of its objects, because a registered class is instantiated first. If there is none, the result is the
    object or class itself.
    """
    target = unwrap_partials(target)
    if inspect.isroutine(target):
        return target
    for one in (target if inspect.isclass(target) else type(target)).__mro__:
        if "__call__" in vars(one):
            call = vars(one)["__call__"]
            return call.__func__ if isinstance(call, (staticmethod, classmethod)) else call
    return target


def call_signature(target: Any, *, follow_wrapped: bool = True) -> inspect.Signature:
    """Return the signature of a callable, even if its annotations contain names that only type checkers import.

    Raises:
        TypeError, ValueError: it has no signature, like some builtins
    """
    if sys.version_info >= (3, 14):  # evaluates annotations here, no longer where they are written
        return inspect.signature(  # novm
            target, follow_wrapped=follow_wrapped, annotation_format=Format.FORWARDREF
        )
    return inspect.signature(target, follow_wrapped=follow_wrapped)


def name_of(target: Any) -> str:
    """Return a callable's own name; for an object, and for a ``__call__`` method, the name of the class."""
    target = unwrap_partials(target)
    name = getattr(target, "__name__", None)
    if name == "__call__":
        owner = getattr(target, "__self__", None)
        return name_of(owner) if owner is not None else str(target.__qualname__).split(".")[-2]
    return name if isinstance(name, str) else type(target).__name__
