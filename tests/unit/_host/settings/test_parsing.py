"""How values of settings are parsed: from text, as in a variable or flag, and from TOML."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton._host.settings import parsing as values

_WORD = values.choice("red", "green")
_NAMES = values.names("http", "grpc", "metrics")

_READ: list[tuple[values.Kind, object, Any]] = [
    (values.boolean(), True, True),
    *((values.boolean(), text, True) for text in ("true", " Yes ", "on", "1")),
    *((values.boolean(), text, False) for text in ("false", "NO", " Off ", "0")),
    (values.integer(0), "12", 12),
    (values.integer(0, 5), 5, 5),
    (values.number(0), "1.5", 1.5),
    (values.number(0), 2, 2.0),
    (values.size(), "64MiB", 64 << 20),
    (values.size(), "1.5 GB", 1_500_000_000),
    (values.size(), "2k", 2000),
    (values.size(), "3b", 3),
    (values.size(), 4096, 4096),
    (_WORD, "RED", "red"),
    (values.text(), " word ", "word"),
    (values.secret(), "a" * 16, "a" * 16),
    (_NAMES, "grpc, http grpc", ("grpc", "http")),
    (_NAMES, [], ()),
    (_NAMES, "none", ()),
    (values.address(), "127.0.0.1:09", "127.0.0.1:9"),
    (values.address(), "[::1]:80", "[::1]:80"),
    (values.address(), "*:0", "*:0"),
    (values.origin(), "https://chat.example", "https://chat.example"),
    (values.origin(), " HTTPS://Chat.example:443/ ", "https://chat.example"),
    (values.origin(), "http://chat.example:443", "http://chat.example:443"),
    (values.origin(), "http://[::1]:80", "http://[::1]"),
    (values.origin(), "app-1://local", "app-1://local"),
    (values.origin(), "*", "*"),
    (values.origin(), "null", "null"),
    (values.path(), "~/x", os.path.expanduser("~/x")),
    (values.several(values.text()), "one 'two'", ("one", "two")),
    (values.several(values.integer(0)), ["1", 2], (1, 2)),
    (values.optional(values.integer(0)), None, None),
    (values.optional(values.integer(0)), "3", 3),
]


@pytest.mark.parametrize(("kind", "raw", "value"), _READ, ids=lambda one: repr(one)[:20])
def test_a_value_is_parsed_from_text_and_from_toml(
    kind: values.Kind, raw: object, value: Any
) -> None:
    assert kind.read(raw) == value
    assert kind.read(value) == value  # one that was read already


_REFUSED: list[tuple[values.Kind, object]] = [
    (values.boolean(), "maybe"),
    (values.integer(0), -1),
    (values.integer(0, 5), 6),
    (values.integer(0), True),
    (values.integer(0), 1.0),
    (values.integer(0), ""),
    (values.number(0), "nan"),
    (values.number(0), "inf"),
    (values.number(0), -0.5),
    (values.number(0), False),
    (values.size(), "much"),
    (values.size(), -5),
    (_WORD, "blue"),
    (values.text(), "two words"),
    (values.text(), ""),
    (values.text(), 3),
    (_NAMES, "htp"),
    (_NAMES, 7),
    (_NAMES, [1]),
    (_NAMES, {"http": 1}),
    (values.address(), "127.0.0.1"),
    (values.address(), "::1:80"),
    (values.address(), "localhost:80"),
    (values.address(), "127.0.0.1:70000"),
    (values.origin(), "chat.example"),
    (values.origin(), "https://chat.example/app"),
    (values.origin(), "https://me@chat.example"),
    (values.origin(), "https://a,https://b"),
    (values.origin(), "https://"),
    (values.origin(), ""),
    (values.origin(), None),
    (values.path(), ""),
    (values.path(), "a\0b"),
    (values.several(values.integer(0)), ["1", "x"]),
    (values.several(values.text()), "an 'open quote"),
]


@pytest.mark.parametrize(("kind", "raw"), _REFUSED, ids=lambda one: repr(one)[:20])
def test_invalid_values_are_refused_with_the_allowed_ones(kind: values.Kind, raw: object) -> None:
    with pytest.raises(ValueError, match="is not"):
        kind.read(raw)


def test_a_relative_path_is_relative_to_its_source() -> None:
    base = Path("/etc/pytriton")
    assert values.path().resolve_paths("keys", base) == "/etc/pytriton/keys"
    assert values.path().resolve_paths("/keys", base) == "/keys"
    many = values.several(values.path())
    assert many.resolve_paths(("models", "s3://bucket/x"), base) == (
        "/etc/pytriton/models",
        "s3://bucket/x",
    )
    assert values.text().resolve_paths("keys", base) == "keys"


@given(
    st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.lists(st.text()), st.none())
)
def test_any_input_is_parsed_or_refused(raw: object) -> None:
    for kind, _, _ in _READ:
        try:
            value = kind.read(raw)
        except ValueError:
            continue
        assert kind.read(value) == value
