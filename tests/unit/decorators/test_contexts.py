"""The context from which a decorated callable reads its model's configuration, and how it is set."""

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
def test_a_context_set_by_hand_applies_above_any_callable(make: Any) -> None:
    """Including callables that cannot have the attribute themselves."""
    infer = batch(first_value("absent")(make()))
    infer.__triton_context__ = TritonContext()  # type: ignore[attr-defined]
    infer.__triton_context__.model_configs[infer] = config("mine")  # type: ignore[attr-defined]
    set_triton_context(_answer, config("served"))
    assert list(infer(requests_of(1))[0]) == ["mine"]


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_context_set_by_hand_applies_at_any_position_in_the_stack(layer: int) -> None:
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


def test_a_context_set_by_hand_may_be_any_object() -> None:
    """A test of a model may use a fake."""
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


def test_a_context_may_be_created_with_its_configurations() -> None:
    configs = ModelConfigDict()
    configs[_answer] = config("mine")
    assert TritonContext(configs).model_configs is configs
    assert TritonContext(model_configs=configs).model_config is configs[_answer]
