"""Limits of the native frontend and of the OpenAI API: allowed values, and that both sides know the same ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytriton._host.settings.declarations import DaemonConfig
from pytriton._host.settings.limits import (
    FRONTEND_LIMITS,
    Limit,
    limits_for,
    limits_of,
    openai_limits,
)

_TABLE = Path(__file__).parents[4] / "proxy_backend" / "frontend" / "net" / "limits.c"
_ROW = re.compile(
    r"\{\"(\w+)\", offsetof\(Limits, \w+\), (?:true|false), ([^,]+), ([^,]+), ([^}]+)\}"
)


def test_the_frontend_has_the_same_table() -> None:
    rows = _ROW.findall(_TABLE.read_text())
    theirs = {name: Limit(*map(_number, numbers)) for name, *numbers in rows}
    assert theirs == FRONTEND_LIMITS


def _number(text: str) -> float:
    base, shift, by = text.partition("<<")
    return float(int(base) << int(by)) if shift else float(text)


def test_valid_limits() -> None:
    config = DaemonConfig(
        frontend="native",
        frontend_limit=("streams=5", "idle_s=0.5", "streams=6", "connections=1e3"),
    )
    assert limits_of(config.frontend_limit) == {"streams": 6, "idle_s": 0.5, "connections": 1000}


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ("streams", "'streams' is not NAME=VALUE"),
        ("stream=5", r"unknown limit 'stream' \(did you mean streams\?\)"),
        ("streams=many", "streams is 'many', which is not a number"),
        ("streams=0", "streams is 0, but must be between 1 and 1048576"),
        ("streams=nan", "streams is nan, but must be between"),
        ("header_bytes=1e9", "must be between 1024 and 16777216"),
    ],
)
def test_invalid_limits(pair: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DaemonConfig(frontend="native", frontend_limit=(pair,))


def test_some_defaults_grow_with_the_memory() -> None:
    """They are never below the table's values."""
    small, large = limits_for(1 << 30), limits_for(64 << 30)
    assert set(small.values()) == {1 << 30}
    assert set(large.values()) == {16 << 30}
    assert set(small) == {"total_body_bytes", "total_unsent_bytes"}


def test_unset_limits_of_the_openai_api_have_defaults() -> None:
    config = DaemonConfig(openai_limit=("requests=5", "response_s=0"))
    limits = openai_limits(config.openai_limit)
    assert limits == {"body_bytes": 64 << 20, "requests": 5, "response_s": 0}
