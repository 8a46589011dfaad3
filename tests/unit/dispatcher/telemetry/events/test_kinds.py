"""The kinds of events: each is declared once, and emitted with its declared fields."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.kinds import KINDS, EventKind

DISPATCHER = Path(__file__).parents[5] / "dispatcher"


def _by_constant() -> dict[str, EventKind]:
    return {name: kind for name, kind in vars(kinds).items() if isinstance(kind, EventKind)}


def _kind_uses() -> Iterator[tuple[str, list[str], set[str] | None]]:
    """Yield the place, kinds and field names (None if not literal) of each call that names a kind."""
    for path in DISPATCHER.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "kinds" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call):
                continue
            named = [
                leaf.attr
                for argument in node.args
                for leaf in ast.walk(argument)
                if isinstance(leaf, ast.Attribute)
                and isinstance(leaf.value, ast.Name)
                and leaf.value.id == "kinds"
            ]
            if not named:
                continue
            numbers = [word.value for word in node.keywords if word.arg == "numbers"]
            keys: set[str] | None = set()
            if numbers and isinstance(numbers[0], ast.Dict):
                keys = {str(ast.literal_eval(key)) for key in numbers[0].keys if key is not None}
            elif numbers:
                keys = None
            yield f"{path.relative_to(DISPATCHER)}:{node.lineno}", named, keys


def test_constants_are_named_after_their_kinds() -> None:
    constants = _by_constant()
    assert {name.lower() for name in constants} == set(KINDS)
    assert all(constants[kind.name.upper()] is kind for kind in KINDS.values())


def test_a_kind_has_a_level_of_the_log() -> None:
    assert {kind.level for kind in KINDS.values()} <= {"debug", "info", "warning", "error"}


def test_events_have_the_fields_of_their_kind() -> None:
    constants = _by_constant()
    wrong = [
        f"{place}: {name} has no {sorted(keys - set(constants[name].numbers))}"
        for place, names, keys in _kind_uses()
        if keys
        for name in names
        if not keys <= set(constants[name].numbers)
    ]
    assert wrong == []


def test_every_kind_is_emitted_somewhere() -> None:
    text = "\n".join(
        path.read_text(encoding="utf-8")
        for path in DISPATCHER.rglob("*.py")
        if path.name != "kinds.py"
    )
    assert [name for name in _by_constant() if f"kinds.{name}" not in text] == []
