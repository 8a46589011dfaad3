"""Callables as functions: what a generator may yield in a model that is not decoupled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from pytriton.decorators.wrapping import ASYNCHRONOUS, kind_of
from pytriton.worker.callables import awaited, synchronous

REQUESTS = [{"x": 1}, {"x": 2}]


def piecewise(requests: Any) -> Iterator[Any]:
    yield from requests


def only_one(requests: Any) -> Iterator[Any]:
    yield requests[0]


async def only_one_later(requests: Any) -> AsyncIterator[Any]:
    yield requests[0]


def fitting(requests: Any) -> Iterator[Any]:
    yield list(requests)


@pytest.mark.parametrize(
    ("infer", "words"),
    [
        (piecewise, r"yielded 2 times.*decoupled=True"),
        (only_one, r"is a generator, and yielded dict \{'x': 1\}.*decoupled=True"),
        (only_one_later, r"is a generator, and yielded dict.*decoupled=True"),
    ],
)
def test_the_error_for_a_generator_mentions_decoupled_models(infer: Any, words: str) -> None:
    def call() -> None:
        if kind_of(infer) in ASYNCHRONOUS:
            asyncio.run(awaited(infer(REQUESTS)))
        else:
            synchronous(infer)(REQUESTS)

    with pytest.raises(ValueError, match=words):
        call()


def test_a_generator_may_yield_once_what_a_function_returns() -> None:
    assert synchronous(fitting)(REQUESTS) == REQUESTS
