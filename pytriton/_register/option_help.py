"""Shows the options of a function in `help` and in run-time completion."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, get_type_hints

from pytriton.run_options import OPTIONS, names_of

_F = TypeVar("_F", bound=Callable[..., Any])


def takes(kind: Any) -> Callable[[_F], _F]:
    """Decorate a function with ``**options: Unpack[kind]`` so that `help` and run-time completion show its options.

    Replaces the description of `options` in its docstring, which must be the last of the section Args, by a line for
    each.
    """

    def decorate(function: _F) -> _F:
        signature = inspect.signature(function)
        named = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
            for name, hint in get_type_hints(kind).items()
        ]
        shown = signature.replace(parameters=[*named, *options])
        function.__signature__ = shown  # type: ignore[attr-defined]
        if function.__doc__:  # None with `python -OO`
            function.__doc__ = _IN_DOCSTRING.sub(
                lambda match: _described(names_of(kind), match["indent"]), function.__doc__
            )
        return function

    return decorate


_IN_DOCSTRING = re.compile(r"^(?P<indent> +)options: .*?(?=\n\n)", re.MULTILINE | re.DOTALL)


def _described(names: Iterable[str], indent: str) -> str:
    lines = []
    for name in names:
        option = OPTIONS[name]
        default = option.default
        shown = f'"{default}"' if isinstance(default, str) else f"{default}"
        plain = isinstance(default, (str, int, float))
        text = f"{name}: {option.doc} ({shown})" if plain else f"{name}: {option.doc}"
        lines += textwrap.wrap(
            text, 105 + len(indent), initial_indent=indent, subsequent_indent=f"{indent}    "
        )
    return "\n".join(lines)
