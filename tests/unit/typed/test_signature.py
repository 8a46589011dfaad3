"""What the annotations of typed functions declare."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from pytriton.decorators.wrapping import Kind
from pytriton.exceptions import PyTritonValidationError
from pytriton.typed.markers import Batching, batchable
from pytriton.typed.signature import is_typed, signature_of


def function(text: str, top_k: int = 3) -> list[str]:
    """Return words."""
    return [text] * top_k


class Model:
    def __call__(self, text: str) -> int:
        return len(text)

    def method(self, text: str, /, *, top_k: int) -> None: ...

    @batchable(max_batch_size=8, max_delay_s=0.5)
    def lengths(self, text: list[str], top_k: list[int] = []) -> list[int]:  # noqa: B006
        return [len(one) for one in text]


async def coroutine(text: str) -> str:
    return text


def generator(text: str) -> Iterator[str]:
    yield text


async def async_generator(text: str) -> AsyncIterator[int]:
    yield len(text)


def names(target: Any) -> list[tuple[str, Any, bool]]:
    return [(one.name, one.type, one.required) for one in signature_of(target).parameters]


@pytest.mark.parametrize(
    ("target", "expected", "result", "kind"),
    [
        (function, [("text", str, True), ("top_k", int, False)], list[str], Kind.FUNCTION),
        (Model, [("text", str, True)], int, Kind.FUNCTION),
        (Model(), [("text", str, True)], int, Kind.FUNCTION),
        (Model().method, [("text", str, True), ("top_k", int, True)], type(None), Kind.FUNCTION),
        (functools.partial(function, "a"), [("top_k", int, False)], list[str], Kind.FUNCTION),
        (
            functools.partial(function, top_k=4),
            [("text", str, True), ("top_k", int, False)],
            list[str],
            Kind.FUNCTION,
        ),
        (coroutine, [("text", str, True)], str, Kind.COROUTINE),
        (generator, [("text", str, True)], str, Kind.GENERATOR),
        (async_generator, [("text", str, True)], int, Kind.ASYNC_GENERATOR),
    ],
)
def test_callables_of_each_kind(target: Any, expected: Any, result: Any, kind: Kind) -> None:
    signature = signature_of(target)
    assert names(target) == expected
    assert (signature.result, signature.kind) == (result, kind)
    assert is_typed(target)


def test_a_batchable_function_takes_one_item_per_request() -> None:
    signature = signature_of(Model().lengths)
    assert signature.batching == Batching(8, 0.5)
    assert names(Model().lengths) == [("text", str, True), ("top_k", int, False)]
    assert signature.result is int


def test_functions_without_annotations_are_not_typed() -> None:
    def untyped(requests): ...  # type: ignore[no-untyped-def]
    def partly(a: int, b): ...  # type: ignore[no-untyped-def]
    def nothing(): ...  # type: ignore[no-untyped-def]
    def constant() -> int: ...  # type: ignore[empty-body]

    assert not is_typed(untyped)
    assert not is_typed(partly)
    assert not is_typed(nothing)
    assert is_typed(constant)
    assert not is_typed(max)


def variadic(*texts: str) -> None: ...
def keywords(**texts: str) -> None: ...
def unresolved(text: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def mixed(text: str, other) -> None: ...  # type: ignore[no-untyped-def]
@batchable()
def no_list(text: str) -> list[int]: ...  # type: ignore[empty-body]
@batchable()
def no_result_list(text: list[str]) -> int: ...  # type: ignore[empty-body]
@batchable()
def batched_stream(text: list[str]) -> Iterator[str]: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (variadic, "variadic takes .texts: .*Name each parameter"),
        (keywords, "keywords takes ..texts: .*Name each parameter"),
        (unresolved, "annotations of unresolved cannot be resolved: name 'Missing'"),
        (mixed, "Parameter 'other' of mixed has no annotation"),
        (no_list, "no_list .*parameter 'text' must be annotated as a list"),
        (no_result_list, "no_result_list .*what it returns must be annotated as a list"),
    ],
)
def test_unservable_signatures(target: Callable[..., Any], text: str) -> None:
    with pytest.raises(PyTritonValidationError, match=text):
        signature_of(target)


@pytest.mark.parametrize(
    "given",
    [{"max_batch_size": 0}, {"max_batch_size": True}, {"max_delay_s": -1}, {"max_delay_s": "1"}],
)
def test_invalid_batching(given: Any) -> None:
    with pytest.raises(PyTritonValidationError, match=next(iter(given))):
        batchable(**given)
    with pytest.raises(PyTritonValidationError, match="parentheses"):
        batchable(function)  # type: ignore[arg-type]


class Static:
    @staticmethod
    def __call__(text: str) -> int: ...  # type: ignore[empty-body]


class Renamed:
    def __call__(this, text: str) -> int: ...  # type: ignore[empty-body]


def test_calls_of_classes_have_no_self() -> None:
    for kind in (Static, Renamed):
        assert is_typed(kind)
        assert [one.name for one in signature_of(kind).parameters] == ["text"]
