"""Results made of slices: the whole array is used only while every item still has its original slice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pytriton.decorators import batch
from pytriton.decorators.batching import gather, split
from pytriton.proxy.results import Pieces
from pytriton.proxy.types import Request

WHOLE = np.arange(6.0).reshape(3, 2)


def _pieces(make: Callable[[dict[str, Any]], Any] = dict) -> Pieces:
    slices = [WHOLE[:1], WHOLE[1:]]
    return Pieces([make({"x": piece}) for piece in slices], {"x": WHOLE}, {"x": slices})


@pytest.mark.parametrize("make", [dict, Request])
def test_the_whole_array_is_used(make: Any) -> None:
    pieces = _pieces(make)
    assert pieces.whole("x") is WHOLE
    assert pieces.whole("y") is None
    assert gather(pieces)[0]["x"] is WHOLE


def _replace(pieces: Pieces) -> None:
    pieces[1]["x"] = pieces[1]["x"].copy()


def _remove(pieces: Pieces) -> None:
    del pieces[0]["x"]


CHANGES: list[Callable[[Pieces], Any]] = [
    _replace, _remove, Pieces.reverse, Pieces.pop, lambda pieces: pieces.append(pieces[0]),
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_changed_slices_prevent_that(change: Callable[[Pieces], Any]) -> None:
    pieces = _pieces()
    change(pieces)
    assert pieces.whole("x") is None


def test_a_part_of_the_results_is_a_plain_list() -> None:
    assert type(_pieces()[:2]) is list


def test_responses_of_batch_are_slices() -> None:
    @batch
    def infer(x: Any) -> dict[str, Any]:
        return {"y": x * 2, "names": [["a"], ["b"], ["c"]]}

    results = infer(_pieces(Request))
    assert results.whole("y").tolist() == (WHOLE * 2).tolist()
    assert results.whole("names") is None  # no array
    assert [result["names"].tolist() for result in results] == [[["a"]], [["b"], ["c"]]]


def test_rows_that_were_changed_in_place_are_changed_in_the_whole() -> None:
    results = split({"y": WHOLE.copy()}, [1, 2])
    results[1]["y"][:] = 7
    assert isinstance(results, Pieces)
    whole = results.whole("y")
    assert whole is not None
    assert whole.tolist() == [[0, 1], [7, 7], [7, 7]]
