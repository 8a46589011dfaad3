"""What the annotations of typed functions declare."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Optional

import pytest

from pytriton.decorators.wrapping import Kind
from pytriton.exceptions import PyTritonValidationError
from pytriton.typed.markers import Batching, batchable
from pytriton.typed.signature import is_typed, parts_of, signature_of


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


#: Without the `annotations` of __future__. From Python 3.14 on, such a class evaluates its annotations later.
CLASSES = """
import dataclasses
from typing import Optional

@dataclasses.dataclass
class Photo:
    data: bytes

@dataclasses.dataclass
class Album:
    photos: list[Photo]
    parent: Optional["Album"] = None
"""


def test_the_fields_of_classes_are_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("module_of_a_user")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(CLASSES, vars(module))
    assert {module.Photo, bytes, Optional[module.Album]} <= set(parts_of(module.Album))


ALIASES = """
type Words = list[str]
type Swapped[First, Second] = dict[Second, First]
type Json = dict[str, Json] | None
type Nested[Item] = list[Nested[Item]] | Item
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the type statement")
def test_type_aliases_are_replaced_by_what_they_stand_for() -> None:
    module: Any = types.ModuleType("module_of_a_user")
    exec(ALIASES, vars(module))

    def call(words: Any, optional: Any, swapped: Any, json: Any) -> Any: ...

    call.__annotations__.update(
        words=module.Words,
        optional=Optional[module.Words],
        swapped=list[module.Swapped[int, str]],
        json=module.Json,
        **{"return": module.Nested[int]},
    )
    signature = signature_of(call)
    words, optional, swapped, json = (one.type for one in signature.parameters)
    assert words == list[str]
    assert optional == Optional[list[str]]
    assert swapped == list[dict[str, int]]
    assert json == Optional[dict[str, module.Json]]
    assert int in parts_of(signature.result)
