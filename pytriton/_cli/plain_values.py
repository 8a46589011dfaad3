"""Fast handling of text, paths and defaults: the conversion by typer and pydantic takes longer than most commands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

__all__ = ["take_plainly"]

_BY_TYPER = object()
#: typer's options for values beside conversion, with the values that mean that a command uses none of them.
_NOTHING_MORE = {
    "parser": None, "path_type": None, "exists": False, "file_okay": True, "dir_okay": True, "writable": False,
    "readable": True, "resolve_path": False, "allow_dash": False,
}  # fmt: skip


def take_plainly(param: Any) -> None:
    """Let a parameter take text, paths, defaults and missing values without conversion.

    typer converts and checks all other values; all values in versions of typer that do not use pydantic.
    """
    descriptor = getattr(param, "type_descriptor", None)
    if descriptor is None or "process_value" in vars(param):
        return
    by_typer = param.process_value

    def process_value(context: Any, value: Any) -> Any:
        taken = _as_it_is(param, descriptor, value)
        if taken is _BY_TYPER or (param.required and not taken):
            return by_typer(context, value)
        return taken if param.callback is None else param.callback(context, param, taken)

    param.process_value = process_value


def _as_it_is(param: Any, descriptor: Any, value: Any) -> Any:
    """Return what typer would return for a value, or `_BY_TYPER` if only typer can tell."""
    kind, wanted = descriptor.annotation, descriptor.parameter_info
    several = param.multiple or param.nargs == -1
    if value is None:
        return () if several else None
    if any(getattr(wanted, name, _BY_TYPER) is not usual for name, usual in _NOTHING_MORE.items()):
        return _BY_TYPER
    if several:
        is_text = kind == list[str] and type(value) is tuple and {*map(type, value)} <= {str}
        return [*value] if is_text else _BY_TYPER
    if kind is str and type(value) is str:
        return value
    if kind is Path and type(value) is str:
        # typer reports a path that exists but cannot be read.
        return Path(value) if os.access(value, os.R_OK) or not os.path.lexists(value) else _BY_TYPER
    if kind in (int, float) and type(value) is kind and value == param.default:
        return value
    return _BY_TYPER
