"""One name and one function for each kind of callable, wherever it is decorated, registered or served."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from pytriton._callables import called_function, name_of
from pytriton.declaration import default_model_name
from pytriton.decorators import Kind, batch, kind_of
from pytriton.decorators.checking import signature_problem
from pytriton.exceptions import PyTritonValidationError
from pytriton.openai.embeddings import takes_dimensions
from pytriton.typed.markers import batchable, batching_of
from pytriton.typed.signature import is_typed, signature_of


class Scorer:
    """A class of callables."""

    @batchable(max_batch_size=4)
    def __call__(self, text: list[str]) -> list[str]:
        """Score."""
        return text

    def stream(self, text: str) -> Iterator[str]:
        yield text


class Inherited(Scorer):
    """It has no ``__call__`` of its own."""


class Static:
    @staticmethod
    async def __call__(text: str) -> str:
        return text


def scorer(text: str) -> str:
    return text


@functools.wraps(scorer)
def wrapping(text: str) -> str:
    return scorer(text)


TWICE = functools.partial(functools.partial(scorer, "a"))


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (scorer, "scorer"),
        (wrapping, "scorer"),
        (batch(scorer), "scorer"),
        (TWICE, "scorer"),
        (TWICE.__call__, "scorer"),
        (Scorer, "Scorer"),
        (Scorer(), "Scorer"),
        (Inherited(), "Inherited"),
        (Inherited().__call__, "Inherited"),
        (Scorer.__call__, "Scorer"),
        (Scorer().stream, "stream"),
        (functools.partial(Scorer()), "Scorer"),
        (functools.partial(Scorer), "Scorer"),
        (functools.lru_cache(scorer), "scorer"),
        (len, "len"),
    ],
)
def test_a_callable_has_the_same_name_in_all_places(target: Any, name: str) -> None:
    assert name_of(target) == default_model_name(target) == name


@pytest.mark.parametrize(
    ("target", "function"),
    [
        (scorer, scorer),
        (TWICE, scorer),
        (wrapping, wrapping),
        (Scorer, Scorer.__call__),
        (Scorer(), Scorer.__call__),
        (Inherited, Scorer.__call__),
        (functools.partial(Inherited()), Scorer.__call__),
        (Static(), inspect.getattr_static(Static, "__call__").__func__),
        (len, len),
        (3, 3),
        (int, int),
    ],
)
def test_the_function_that_a_call_runs(target: Any, function: Any) -> None:
    assert called_function(target) is function


def test_a_call_on_the_instance_does_not_count() -> None:
    target = Scorer()
    target.__call__ = scorer  # type: ignore[method-assign, assignment]
    assert called_function(target) is Scorer.__call__


@pytest.mark.parametrize("target", [Scorer, Scorer(), Inherited, Inherited(), Inherited().__call__])
def test_an_inherited_call_is_batchable_and_typed(target: Any) -> None:
    batching = batching_of(target)
    assert batching is not None
    assert batching.max_batch_size == 4
    assert [(one.name, one.type) for one in signature_of(target).parameters] == [("text", str)]


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        (Scorer().stream, Kind.GENERATOR),
        (functools.partial(Scorer().stream, "a"), Kind.GENERATOR),
        (Static(), Kind.COROUTINE),
        (Scorer, Kind.FUNCTION),
    ],
)
def test_kinds(target: Any, kind: Kind) -> None:
    assert kind_of(target) is kind


def test_a_refused_partial_is_named_after_its_function() -> None:
    problem = signature_problem(functools.partial(scorer, text="a"), ["x"])
    assert problem is not None
    assert problem.startswith("scorer(")


@pytest.mark.skipif(sys.version_info < (3, 14), reason="raises at the definition")
def test_annotations_for_type_checkers_are_not_evaluated() -> None:
    names: dict[str, Any] = {}
    exec("def infer(requests: Missing, /, dimensions: Missing = 3) -> Missing: ...", names)
    infer = names["infer"]
    assert signature_problem(infer, ["x"]) is None
    assert takes_dimensions(infer)
    assert is_typed(infer)
    with pytest.raises(PyTritonValidationError, match="annotations of infer cannot be resolved"):
        signature_of(infer)
