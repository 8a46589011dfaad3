"""Examples run twice in a row: the second run replaces what the first one registered."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = [path for path in sorted(EXAMPLES.rglob("*.py")) if ".register(" in path.read_text()]


def test_there_are_examples_that_register() -> None:
    assert len(SCRIPTS) > 10


@pytest.mark.parametrize("path", SCRIPTS, ids=[str(one.relative_to(EXAMPLES)) for one in SCRIPTS])
def test_a_second_run_replaces_the_model_of_the_first(path: Path) -> None:
    calls = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "register"
    ]
    assert calls
    for call in calls:
        given = {one.arg: one.value for one in call.keywords}
        replace = given.get("replace")
        assert isinstance(replace, ast.Constant), f"line {call.lineno}"
        assert replace.value is True, f"line {call.lineno}"
