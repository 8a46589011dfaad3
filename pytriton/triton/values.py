"""Parses TritonConfig's values from text and from the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytriton.exceptions import PyTritonValidationError

ENV_PREFIX = "PYTRITON_TRITON_CONFIG_"
#: Names that PyTriton documents but does not define -> the actual fields.
_ALIASES = {"log_verbosity": "log_verbose"}
_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")
_WORD, _BEGINS = re.compile(r"[a-zA-Z_]\w*"), re.compile(r"[a-zA-Z_]\w*(=|$)")
#: Lists whose entries contain commas.
_WHOLE = ("cache_config", "http_restricted_api", "grpc_restricted_protocol")


def read_environment(kinds: Mapping[str, str]) -> dict[str, tuple[str, Any]]:
    """Return field name -> (variable, value) for every variable with the prefix, including unknown field names.

    Args:
        kinds: type of each field. Numbered entries of a list field are joined in the order of their numbers.
    """
    found: dict[str, tuple[str, Any]] = {}
    entries: dict[str, dict[int, str]] = {}
    for variable, text in sorted(os.environ.items()):
        name = variable[len(ENV_PREFIX) :].lower()
        if not variable.startswith(ENV_PREFIX) or not name or not text:
            continue
        base, _, number = name.rpartition("_")
        name = _ALIASES.get(name, name)
        if number.isdecimal() and kinds.get(base, "").startswith("list"):
            entries.setdefault(base, {})[int(number)] = text
        else:
            found[name] = (variable, text)
    for name, numbered in entries.items():
        values = [numbered[number] for number in sorted(numbered)]
        found[name] = (f"{ENV_PREFIX}{name.upper()}_*", values)
    return found


def cast(name: str, kind: str, value: Any, shown: str) -> Any:
    """Convert a value to the type of its field.

    Args:
        name: name of the field
        kind: "bool", "int", "str", "Path" or "list[str]"
        value: the value, or a string to parse
        shown: name of the field in error messages

    Raises:
        PyTritonValidationError: the value cannot be converted

    Example:
        >>> cast("allow_http", "bool", "False", "allow_http")
        False
    """
    if value is None:
        return None
    try:
        return _cast(name, kind, value)
    except (TypeError, ValueError):
        allowed = {
            "bool": f"one of {', '.join((*_TRUE, *_FALSE))}",
            "int": "an integer",
            "str": "a string",
            "Path": "a path",
        }.get(kind, "a list of strings")
        raise PyTritonValidationError(f"{shown}: {value!r} is not {allowed}.") from None


def _cast(name: str, kind: str, value: Any) -> Any:
    if kind == "bool":
        return _to_bool(value)
    if kind == "int":
        if isinstance(value, (bool, float)) and value != int(value):
            raise ValueError
        return int(value)
    if kind == "str":
        return str(value)
    if kind == "Path":
        return Path(value)
    if isinstance(value, str):
        return _split(name, value)
    if not isinstance(value, Sequence):
        raise TypeError
    return [str(one) for one in value]


def _to_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError


def _split(name: str, text: str) -> list[str]:
    """Split a string into the entries of a list: `a=1,b=2` has two entries, `opentelemetry,url=x` has one.

    Entries may contain commas, so a comma starts a new entry only if a name follows it.
    """
    if name in _WHOLE:
        return [text]
    entries: list[str] = []
    for piece in text.split(","):
        if entries and (_WORD.fullmatch(entries[-1]) or not _BEGINS.match(piece)):
            entries[-1] += f",{piece}"
        else:
            entries.append(piece)
    return entries
