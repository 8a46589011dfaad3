"""The context by which a decorated callable knows its model's configuration, and what sets it."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest
from support.models.decorated import Scaler, config, requests_of

from pytriton.decorators import (
    ModelConfigDict,
    TritonContext,
    batch,
    first_value,
    get_triton_context,
    set_triton_context,
    triton_context,
)


def test_a_context_attribute_set_by_hand_wins_in_the_whole_stack() -> None:
    context = TritonContext()
    infer = batch(lambda x: [x])
    context.model_configs[infer] = config("mine")
    infer.__triton_context__ = context  # type: ignore[attr-defined]
    set_triton_context(infer, config("served"))
    assert list(infer(requests_of(1))[0]) == ["mine"]

    model = Scaler(1)
    model.__triton_context__ = context  # type: ignore[attr-defined]
    assert list(model.negated(requests_of(1))[0]) == ["mine"]


def _answer(x: Any) -> list[Any]:
    return [x]


class _Callable:
    def __call__(self, x: Any) -> list[Any]:
        return [x]

    def method(self, x: Any) -> list[Any]:
        return [x]


@pytest.mark.parametrize(
    "make",
    [
        lambda: functools.partial(_answer),
        _Callable,
        lambda: _Callable().method,
        lambda: lambda x: [x],
    ],
)
def test_a_context_set_by_hand_holds_above_a_callable_of_any_kind(make: Any) -> None:
    """Also above those that cannot have the attribute themselves."""
    infer = batch(first_value("absent")(make()))
    infer.__triton_context__ = TritonContext()  # type: ignore[attr-defined]
    infer.__triton_context__.model_configs[infer] = config("mine")  # type: ignore[attr-defined]
    set_triton_context(_answer, config("served"))
    assert list(infer(requests_of(1))[0]) == ["mine"]


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_context_set_by_hand_holds_wherever_in_the_stack_it_is_set(layer: int) -> None:
    def answer(x: Any) -> list[Any]:
        return [x]

    middle = first_value("absent")(answer)
    infer = batch(middle)
    context = TritonContext()
    context.model_configs[infer] = config("mine")
    layers: list[Any] = [answer, middle, infer]
    layers[layer].__triton_context__ = context
    set_triton_context(infer, config("served"))
    assert list(infer(requests_of(1))[0]) == ["mine"]
    assert get_triton_context(infer) is context


def test_a_context_set_by_hand_is_handed_over_whatever_it_is() -> None:
    """A test of a model may have a stand-in."""
    seen = []

    @batch
    @triton_context
    def infer(x: Any, triton_context: Any) -> list[Any]:
        seen.append(triton_context)
        return [x]

    stand_in = SimpleNamespace(model_config=config("mine"))
    infer.__triton_context__ = stand_in  # type: ignore[attr-defined]
    assert list(infer(requests_of(1))[0]) == ["mine"]
    assert seen == [stand_in]


def test_a_context_may_be_made_with_its_configurations() -> None:
    configs = ModelConfigDict()
    configs[_answer] = config("mine")
    assert TritonContext(configs).model_configs is configs
    assert TritonContext(model_configs=configs).model_config is configs[_answer]
