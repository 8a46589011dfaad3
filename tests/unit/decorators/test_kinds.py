"""Every decorator on every kind of callable, without a server: the results are the same."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pytriton.decorators import (
    ConstantPadder,
    TritonContext,
    batch,
    fill_optionals,
    first_value,
    group_by_keys,
    group_by_values,
    kind_of,
    pad_batch,
    sample,
    set_triton_context,
    triton_context,
)
from pytriton.model_config import DynamicBatcher, TensorSpec, TritonModelConfig
from pytriton.proxy.types import Request

Decorator = Callable[[Any], Any]

CONFIG = TritonModelConfig(
    "m",
    max_batch_size=8,
    batcher=DynamicBatcher(preferred_batch_size=[4]),
    inputs=[
        TensorSpec("x", np.float32, (1,)),
        TensorSpec("k", np.int64, (1,), optional=True),
    ],
    outputs=[TensorSpec("y", np.float32, (-1,))],
)


def _stacked(*decorators: Decorator) -> Decorator:
    return lambda target: functools.reduce(lambda inner, one: one(inner), decorators[::-1], target)


def _requests(*pairs: tuple[float, int | None]) -> list[Request]:
    found = []
    for x, k in pairs:
        request = Request({"x": np.array([[x]], np.float32)})
        if k is not None:
            request["k"] = np.array([[k]])
        found.append(request)
    return found


def _compute(inputs: dict[str, Any]) -> dict[str, Any]:
    """x + 10 k + 1000 * rows seen together; of k, only the first value, if any."""
    x, k = inputs["x"], inputs.get("k", 0)
    context = inputs.get("triton_context")
    if context is not None:
        assert isinstance(context, TritonContext)
        assert context.model_config is CONFIG
    return {"y": x + 10 * np.asarray(k, np.float32) + 1000 * len(x)}


def function(**inputs: Any) -> Any:
    return _compute(inputs)


async def coroutine(**inputs: Any) -> Any:
    await asyncio.sleep(0)
    return _compute(inputs)


def generator(**inputs: Any) -> Iterator[Any]:
    yield _compute(inputs)
    yield _compute(inputs)


async def async_generator(**inputs: Any) -> AsyncIterator[Any]:
    yield _compute(inputs)
    await asyncio.sleep(0)
    yield _compute(inputs)


def _object_with(target: Any, decorator: Decorator) -> Any:
    """Return an object whose class has the decorated callable as `__call__` and as a method."""

    def plain(self: Any, **inputs: Any) -> Any:
        return target(**self.seen(inputs))

    async def awaited(self: Any, **inputs: Any) -> Any:
        return await target(**self.seen(inputs))

    def yielding(self: Any, **inputs: Any) -> Iterator[Any]:
        yield from target(**self.seen(inputs))

    async def async_yielding(self: Any, **inputs: Any) -> AsyncIterator[Any]:
        async for item in target(**self.seen(inputs)):
            yield item

    kinds = {
        function: plain,
        coroutine: awaited,
        generator: yielding,
        async_generator: async_yielding,
    }

    class Model:
        def __init__(self) -> None:
            self.calls = 0

        def seen(self, inputs: dict[str, Any]) -> dict[str, Any]:
            self.calls += 1
            return inputs

    decorated = decorator(kinds[target])
    for name in ("__call__", "method"):
        setattr(Model, name, decorated)
    return Model()


def _all_results(callable_: Any, requests: list[Request]) -> list[list[float]]:
    """Return all answers to each request."""

    async def gathered() -> list[Any]:
        produced = callable_(requests)
        if hasattr(produced, "__aiter__"):
            return [item async for item in produced]
        return [await produced]

    kind = kind_of(callable_).name
    if kind in ("COROUTINE", "ASYNC_GENERATOR"):
        results = asyncio.run(gathered())
    else:
        results = [callable_(requests)] if kind == "FUNCTION" else list(callable_(requests))
    return [[float(response["y"][0, 0]) for response in responses] for responses in results]


#: Name -> the decorators, the requests, and y of each answer.
CASES: dict[str, tuple[Decorator, list[tuple[float, int | None]], list[float]]] = {
    "batch": (batch, [(1, 2), (3, 4)], [2021, 2043]),
    "sample": (sample, [(1, 2)], [1021]),
    "group_by_keys": (_stacked(group_by_keys, batch), [(1, 2), (3, None)], [1021, 1003]),
    "group_by_values": (
        _stacked(batch, group_by_values("k", pad_fn=ConstantPadder())),
        [(1, 2), (3, 4), (5, 2)],
        [2021, 1043, 2025],
    ),
    "fill_optionals": (
        _stacked(fill_optionals(k=np.array([7])), batch),
        [(1, None), (3, 4)],
        [2071, 2043],
    ),
    "pad_batch": (_stacked(batch, pad_batch), [(1, 2), (3, 4)], [4021, 4043]),
    "first_value": (_stacked(batch, first_value("k")), [(1, 2), (3, 2)], [2021, 2023]),
    "triton_context": (_stacked(batch, triton_context), [(1, 2), (3, 4)], [2021, 2043]),
    "all": (
        _stacked(
            fill_optionals(k=np.array([7])),
            group_by_keys,
            batch,
            group_by_values("k"),
            pad_batch,
            first_value("k"),
            triton_context,
        ),
        [(1, 2), (3, None), (5, 2)],
        [4021, 4073, 4025],
    ),
}
ANSWERS = {function: 1, coroutine: 1, generator: 2, async_generator: 2}


@pytest.mark.parametrize("how", ["alone", "method", "__call__", "lambda", "partial"])
@pytest.mark.parametrize("target", ANSWERS, ids=lambda target: target.__name__)
@pytest.mark.parametrize("case", CASES)
def test_every_decorator_on_every_kind(case: str, target: Any, how: str) -> None:
    decorator, pairs, expected = CASES[case]
    owner = None
    if how in ("method", "__call__"):
        owner = _object_with(target, decorator)
        decorated = owner.method if how == "method" else owner
    elif how == "partial":
        decorated = decorator(functools.partial(target))
    elif how == "lambda" and target is function:
        decorated = decorator(lambda **inputs: function(**inputs))
    else:
        decorated = decorator(target)
    set_triton_context(decorated, CONFIG)
    assert kind_of(decorated) is kind_of(target)
    assert _all_results(decorated, _requests(*pairs)) == [expected] * ANSWERS[target]
    assert owner is None or owner.calls > 0
