"""Decorated methods, coroutines, generators and objects keep their kind."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.models.decorated import Scaler, config, requests_of

from pytriton.decorators import (
    Kind,
    batch,
    kind_of,
    set_triton_context,
)
from pytriton.exceptions import PyTritonValidationError


def test_methods_get_their_object_and_their_own_configuration() -> None:
    first, second = Scaler(2), Scaler(3)
    set_triton_context(first.negated, config("n2"))
    set_triton_context(second.negated, config("n3"))
    assert float(first(requests_of(1))[0]["y"][0, 0]) == 2
    assert float(second(requests_of(1))[0]["y"][0, 0]) == 3
    assert list(first.negated(requests_of(1))[0]) == ["n2"]
    assert list(second.negated(requests_of(1))[0]) == ["n3"]
    assert float(asyncio.run(second.later(requests_of(1)))[0]["y"][0, 0]) == 3
    assert list(Scaler.static(requests_of(1))[0]) == list(first.static(requests_of(1))[0]) == ["y"]
    assert list(first.static_below(requests_of(1))[0]) == ["y"]


def double(x: Any) -> dict[str, Any]:
    return {"y": x * 2}


async def double_later(x: Any) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"y": x * 2}


def double_twice(x: Any) -> Iterator[dict[str, Any]]:
    yield {"y": x * 2}
    yield {"y": x * 4}


async def double_twice_later(x: Any) -> AsyncIterator[dict[str, Any]]:
    yield {"y": x * 2}
    await asyncio.sleep(0)
    yield {"y": x * 4}


async def _collect(stream: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in stream]


class AsyncCallable:
    async def __call__(self, x: Any) -> dict[str, Any]:
        return {"y": x}


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (double, Kind.FUNCTION),
        (double_later, Kind.COROUTINE),
        (double_twice, Kind.GENERATOR),
        (double_twice_later, Kind.ASYNC_GENERATOR),
        (AsyncCallable(), Kind.COROUTINE),
        (AsyncCallable().__call__, Kind.COROUTINE),
        (functools.partial(double_twice), Kind.GENERATOR),
        (Scaler(1), Kind.FUNCTION),
        (Scaler(1).later, Kind.COROUTINE),
        (AsyncCallable, Kind.FUNCTION),
        (np.add, Kind.FUNCTION),
    ],
)
def test_decorating_keeps_the_kind(function: Callable[..., Any], kind: Kind) -> None:
    assert kind_of(function) is kind
    assert kind_of(batch(function)) is kind


def test_a_lambda_may_return_a_generator() -> None:
    sync: Any = batch(lambda x: double_twice(x))
    later: Any = batch(lambda x: double_twice_later(x))
    for results in (list(sync(requests_of(1, 2))), asyncio.run(_collect(later(requests_of(1, 2))))):
        values = [[float(response["y"][0, 0]) for response in responses] for responses in results]
        assert values == [[2, 4], [4, 8]]


def test_a_lambda_may_return_a_coroutine() -> None:
    responses = asyncio.run(batch(lambda x: double_later(x))(requests_of(1)))
    assert float(responses[0]["y"][0, 0]) == 2


def test_closing_a_stream_closes_the_wrapped_generator() -> None:
    closed = []

    @batch
    def stream(x: Any) -> Iterator[dict[str, Any]]:
        try:
            while True:
                yield {"y": x}
        finally:
            closed.append("sync")

    @batch
    async def stream_later(x: Any) -> AsyncIterator[dict[str, Any]]:
        try:
            while True:
                yield {"y": x}
        finally:
            closed.append("async")

    async def take_one() -> None:
        results = stream_later(requests_of(1))
        await results.__anext__()
        await results.aclose()

    results = stream(requests_of(1))
    next(results)
    results.close()
    asyncio.run(take_one())
    assert closed == ["sync", "async"]


def test_the_signature_and_names_are_kept() -> None:
    decorated = batch(double)
    assert inspect.signature(decorated) == inspect.signature(double)
    assert (decorated.__name__, decorated.__module__) == ("double", __name__)
    assert decorated.__wrapped__ is double  # type: ignore[attr-defined]


def test_decorating_an_object_does_not_copy_its_state() -> None:
    model = Scaler(2)
    assert "factor" not in vars(batch(model.negated)) | vars(batch(AsyncCallable()))
    assert "factor" not in vars(batch(model))


def test_only_callables_can_be_decorated() -> None:
    with pytest.raises(PyTritonValidationError, match="Only a callable can be decorated"):
        batch(3)  # type: ignore[call-overload]
