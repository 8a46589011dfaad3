"""Merges and checks the options passed to register() and declared on the callable."""

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

#: The default of each field, by name.
_SPEC_FIELDS = {field.name: field.default for field in msgspec.structs.fields(messages.ModelSpec)}


def check_names(function: str, given: Collection[str], known: Collection[str]) -> None:
    """Raise TypeError, as Python does, for an option that a function does not have."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")


def merge_options(
    declaration: Declaration | None, given: Mapping[str, Any], per_instance: int | None = None
) -> RegisterOptions:
    """Return the value of every option: as passed, else as declared, else the default.

    Raises:
        PyTritonValidationError: a declared option does not exist, or a value is invalid
    """
    said = {name: value for name, value in given.items() if value is not None}
    options = declaration.options if declaration else {}
    declared = {name: value for name, value in options.items() if value is not None}
    for name in declared:
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, OPTIONS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise PyTritonValidationError(
                f"@declare has an option {name!r} that register() does not know.{hint} Valid options: "
                f"{', '.join(OPTIONS)}."
            )
    if declaration and declaration.strict:
        declared["strict"] = True
    if per_instance is not None or said.keys() & {"instances", "devices"}:
        # The number of instances is one decision: options passed here replace all declared ones.
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
    """Return the options that are fields of `messages.ModelSpec` with the same name.

    Options left to a default elsewhere are omitted, unless the field may be None.
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
            "isolation='thread' runs the callable in this process and does not support "
            f"{', '.join(wrong)}: a thread cannot be killed or limited, and shares its process's "
            f"environment. Omit {'it' if len(wrong) == 1 else 'them'}, or use isolation='process'."
        )
