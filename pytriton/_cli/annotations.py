"""Resolved annotations of commands, because typer does not resolve them on every Python."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any


def resolved_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function with annotations as objects, not text."""
    hints = typing.get_type_hints(function, include_extras=True)
    return [
        parameter.replace(annotation=_explicit(hints.get(name, parameter.annotation)))
        for name, parameter in inspect.signature(function).parameters.items()
    ]


def show_parameters(function: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> None:
    """Make `function` appear to typer with these parameters."""
    function.__signature__ = inspect.Signature(list(parameters))  # type: ignore[attr-defined]
    function.__annotations__ = {one.name: one.annotation for one in parameters}


def _explicit(hint: Any) -> Any:
    """Undo the Optional[Annotated[...]] that Python below 3.11 creates for a default of None."""
    for part in typing.get_args(hint):
        if typing.get_origin(part) is Annotated:
            return part
    return hint
