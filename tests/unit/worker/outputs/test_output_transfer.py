"""How an output gets to the proxy: copied into the arena, or lent from where it lies."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import ARENA, OWN
from pytriton.worker.outputs.results import lay_down

_FLOAT = np.dtype(np.float32)
_LARGE = np.zeros(1 << 18, np.float32)  # 1 MiB


@pytest.fixture
def lane(lanes: tuple[Lane, Lane]) -> Lane:
    """The worker's end of a lane whose proxy may read the worker's memory."""
    lanes[1].reads = True
    return lanes[1]


def test_a_large_output_is_lent_where_it_lies(lane: Lane) -> None:
    ref = lay_down(lane, "y", "FP32", _LARGE, _FLOAT)
    assert (ref.memory, ref.offset, ref.nbytes) == (OWN, tensors.address(_LARGE), 1 << 20)
    assert ref.shape == [1 << 18]
    assert lane.lent == [_LARGE]  # kept until the proxy has read it


@pytest.mark.parametrize(
    "array",
    [_LARGE[:-1], _LARGE.reshape(512, 512).T, _LARGE.astype(np.float64)],
    ids=["smaller than 1 MiB", "not contiguous", "of another type"],
)
def test_another_one_is_copied(lane: Lane, array: np.ndarray) -> None:
    ref = lay_down(lane, "y", "FP32", array, _FLOAT)
    assert ref.memory == ARENA
    assert ref.nbytes == array.size * 4
    assert lane.lent == []


def test_a_proxy_that_may_not_read_gets_a_copy(lane: Lane) -> None:
    lane.reads = False
    assert lay_down(lane, "y", "FP32", _LARGE, _FLOAT).memory == ARENA
