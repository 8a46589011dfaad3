"""Options that were given and declared, put together, checked, and on their way into the message."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec

from pytriton._protocol import messages
from pytriton._protocol.scalars import plain
from pytriton.exceptions import PyTritonValidationError
from pytriton.run_options import OPTIONS, RegisterOptions

if TYPE_CHECKING:
    from pytriton.declaration import Declaration

#: By name: the default of each field.
_SPEC_FIELDS = {field.name: field.default for field in msgspec.structs.fields(messages.ModelSpec)}


def check_names(function: str, given: Collection[str], known: Collection[str]) -> None:
    """Raise TypeError, as Python does, if a function got an option that it does not have."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")


def merge_options(
    declaration: Declaration | None, given: Mapping[str, Any], per_instance: int | None = None
) -> RegisterOptions:
    """Return every option as it was given, else as it was declared, else its default.

    Raises:
        PyTritonValidationError: a declared option does not exist, or a value is unusable
    """
    said = {name: value for name, value in given.items() if value is not None}
    options = declaration.options if declaration else {}
    declared = {name: value for name, value in options.items() if value is not None}
    for name in declared:
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, OPTIONS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise PyTritonValidationError(
                f"@declare has an option {name!r} that register() does not know.{hint} There are: "
                f"{', '.join(OPTIONS)}."
            )
    if declaration and declaration.strict:
        declared["strict"] = True
    if per_instance is not None or said.keys() & {"instances", "devices"}:
        # How many instances is one decision: said here, it is not mixed with the declared one.
        declared.pop("instances", None)
        declared.pop("devices", None)
    defaults = {name: option.default for name, option in OPTIONS.items()}
    merged = {name: plain(value) for name, value in {**defaults, **declared, **said}.items()}
    for name, value in merged.items():
        if value is not None:
            OPTIONS[name].check(name, value)
    _check_isolation(merged)
    return cast(RegisterOptions, merged)


def spec_fields(options: RegisterOptions) -> dict[str, Any]:
    """Return the fields of `messages.ModelSpec` that are options of the same name.

    An option that was left to something else is no field here, unless the field may be None, too.
    """
    return {
        name: OPTIONS[name].message(value)
        for name, value in options.items()
        if name in _SPEC_FIELDS and not (value is None and _SPEC_FIELDS[name] is not None)
    }


def _check_isolation(merged: Mapping[str, Any]) -> None:
    if merged["isolation"] == "process":
        return
    wrong = [
        f"{name}={merged[name]!r}"
        for name, option in OPTIONS.items()
        if option.of_process and merged[name] != option.default
    ]
    if wrong:
        raise PyTritonValidationError(
            "isolation='thread' runs the callable in this process, which cannot be given "
            f"{', '.join(wrong)}: a thread can be neither ended from outside nor limited, and has its process's "
            f"surroundings. Leave {'it' if len(wrong) == 1 else 'them'} out, or use isolation='process'."
        )
