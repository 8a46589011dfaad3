"""Limits on the resources that clients may use in the native frontend and the OpenAI API, set as NAME=VALUE."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from pytriton._host.settings.parsing import Kind, nearest


@dataclass(frozen=True)
class Limit:
    """Allowed range and default of a limit."""

    minimum: float
    maximum: float
    default: float


#: Limits of the native frontend, which has the same table in `proxy_backend/frontend/net/limits.c`. Names ending in `_s`
#: are seconds, in `_bytes` bytes. docs/operations/security.md describes each limit.
FRONTEND_LIMITS = {
    "header_bytes": Limit(1024, 1 << 24, 1 << 16),
    "headers": Limit(8, 1 << 16, 128),
    "body_bytes": Limit(1024, 1e15, 2147483647),
    "unpacked_bytes": Limit(1024, 1e15, 4294967296),
    "total_body_bytes": Limit(1 << 20, 1e15, 1 << 30),
    "json_depth": Limit(8, 256, 100),
    "json_values": Limit(1024, 1e12, 1 << 26),
    "inputs": Limit(1, 1 << 20, 1024),
    "output_bytes": Limit(1024, 1e15, 8589934592),
    "regions": Limit(0, 1 << 20, 1 << 14),
    "kept_bytes": Limit(4096, 1 << 30, 131072),
    "kept_calls": Limit(0, 1 << 20, 256),
    "connections": Limit(1, 1 << 24, 1 << 15),
    "connections_per_address": Limit(0, 1 << 24, 0),
    "streams": Limit(1, 1 << 20, 1024),
    "resets_per_s": Limit(1, 1 << 20, 1000),
    "unsent_bytes": Limit(1 << 16, 1e12, 1 << 26),
    "total_unsent_bytes": Limit(1 << 20, 1e15, 1 << 30),
    "handshake_s": Limit(0.1, 1e6, 10),
    "header_s": Limit(0.1, 1e6, 30),
    "body_s": Limit(0.1, 1e6, 30),
    "idle_s": Limit(0, 1e9, 3600),
    "unsent_s": Limit(0.1, 1e6, 60),
}

#: Limits of the OpenAI API. docs/how-to/openai.md describes each limit.
OPENAI_LIMITS = {
    "body_bytes": Limit(0, 1e15, 64 << 20),
    "requests": Limit(1, 1 << 20, 1024),
    "response_s": Limit(0, 1e9, 600),
}

#: Limits of the native frontend that default to 1/n of the memory, if that is more than the default in the table.
_PART_OF_MEMORY = {"total_body_bytes": 4, "total_unsent_bytes": 4}


def limits(table: Mapping[str, Limit]) -> Kind:
    """Return a validator for lists of NAME=VALUE, with names from `table`. Text is split as in a shell."""
    return Kind("a list in which each value is NAME=VALUE", partial(_read_all, table), is_list=True)


def limits_for(memory: int) -> dict[str, float]:
    """Return the default limits that depend on memory, for a machine with `memory` bytes."""
    return {
        name: max(FRONTEND_LIMITS[name].default, memory // part)
        for name, part in _PART_OF_MEMORY.items()
    }


def limits_of(pairs: Iterable[str]) -> dict[str, float]:
    """Return the limits that were set; if a name is repeated, its last value counts."""
    return {name: float(value) for name, _, value in (one.partition("=") for one in pairs)}


def openai_limits(pairs: Iterable[str]) -> dict[str, float]:
    """Return all limits of the OpenAI API: those that were set, and the defaults for the others."""
    return {**{name: one.default for name, one in OPENAI_LIMITS.items()}, **limits_of(pairs)}


def _read_all(table: Mapping[str, Limit], raw: object) -> tuple[str, ...]:
    words = shlex.split(raw) if isinstance(raw, str) else raw
    if not isinstance(words, (list, tuple)):
        raise ValueError(f"{raw!r} is not a list of NAME=VALUE")
    return tuple(_read(table, word) for word in words)


def _read(table: Mapping[str, Limit], raw: object) -> str:
    name, equals, text = str(raw).strip().partition("=")
    if not equals:
        raise ValueError(f"{raw!r} is not NAME=VALUE")
    known = table.get(name)
    if known is None:
        raise ValueError(f"unknown limit {name!r}{nearest(name, table)}")
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}, which is not a number") from None
    if not known.minimum <= value <= known.maximum:
        raise ValueError(
            f"{name} is {text}, but must be between {known.minimum:.15g} and {known.maximum:.15g}"
        )
    return f"{name}={text}"
