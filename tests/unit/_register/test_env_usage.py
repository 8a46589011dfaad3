"""Environment variables that a callable's code uses are found without running it."""

from __future__ import annotations

import functools
import os
from os import environ, getenv
from typing import Any

import pytest

from pytriton._register.environment import variables_read, warn_of_missing
from pytriton.decorators import batch

NAMES = {"A_TOKEN", "B_TOKEN", "C_TOKEN"}


def subscript(requests: Any) -> Any:
    return os.environ["A_TOKEN"]


def through_another(requests: Any) -> Any:
    return [subscript(requests), environ.get("B_TOKEN", "")]


def inner(requests: Any) -> Any:
    return [getenv("C_TOKEN") for _ in requests]


def unrelated(requests: Any) -> Any:
    return "A_TOKEN"


class Engine:
    def __init__(self, helper: Any = None) -> None:
        self.helper = helper

    def __call__(self, requests: Any) -> Any:
        return self._read()

    @staticmethod
    def _read() -> Any:
        return os.environ.get("B_TOKEN")


def closure() -> Any:
    read = subscript
    return lambda requests: read(requests)


def recursive(requests: Any) -> Any:
    return recursive(requests) if requests else os.getenv("A_TOKEN")


@pytest.mark.parametrize(
    ("target", "names"),
    [
        (subscript, {"A_TOKEN"}),
        (through_another, {"A_TOKEN", "B_TOKEN"}),
        (inner, {"C_TOKEN"}),
        (unrelated, set()),
        (Engine, {"B_TOKEN"}),
        (Engine(subscript), {"A_TOKEN", "B_TOKEN"}),
        (Engine(subscript).__call__, {"A_TOKEN", "B_TOKEN"}),
        (functools.partial(subscript), {"A_TOKEN"}),
        (closure(), {"A_TOKEN"}),
        (batch(subscript), {"A_TOKEN"}),
        (recursive, {"A_TOKEN"}),
        (os.path.expanduser, set()),
        (3, set()),
    ],
)
def test_names_are_found(target: Any, names: set[str]) -> None:
    assert variables_read([target]) & NAMES == names


def test_only_variables_not_forwarded_are_reported() -> None:
    with pytest.warns(
        UserWarning, match=r"'m' reads A_TOKEN, B_TOKEN .*env=\['A_TOKEN'"
    ) as reported:
        warn_of_missing("m", [through_another], ["B_TOKEN", "A_TOKEN", "C_TOKEN"])
    assert reported[0].filename == __file__
    warn_of_missing("m", [through_another], ["C_TOKEN"])  # a warning would be an error
