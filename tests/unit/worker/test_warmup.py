"""Warm-up requests: the callable answers them while its worker loads, or the registration fails."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pytriton.ipc.messages import ModelSpec, Warmup, WarmupTensor, World
from pytriton.worker.model import Model
from pytriton.worker.warmup import WarmupError, warm_up


def model(infer: Callable[[Any], Any], *, decoupled: bool = False) -> Model:
    config = {
        "name": "m",
        "max_batch_size": 8,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}],
        "model_transaction_policy": {"decoupled": decoupled},
    }
    return Model(ModelSpec("m", 1, config, World("python")), infer)


def warmup(source: Any = "zero", *, rows: int = 3, count: int = 2, npy: bytes = b"") -> Warmup:
    return Warmup("first", rows, count, [WarmupTensor("x", "FP32", [2], source, npy)])


def test_each_request_has_the_rows_and_values_that_were_declared() -> None:
    seen: list[Any] = []

    def infer(requests: Any) -> Any:
        seen.append(requests[0]["x"].copy())
        requests[0]["x"][:] = 7  # the next one has an array of its own
        return [{"y": requests[0]["x"]}]

    warm_up(model(infer), [warmup()])
    assert [one.shape for one in seen] == [(3, 2), (3, 2)]
    assert not np.any(seen)
    seen.clear()
    file = io.BytesIO()
    np.save(file, np.full((3, 2), 5, np.float32))
    warm_up(model(infer), [warmup("file", count=1, npy=file.getvalue()), warmup("random", count=1)])
    assert (seen[0] == 5).all()
    assert len(np.unique(seen[1])) > 1


def test_nothing_declared_is_nothing_asked() -> None:
    def infer(requests: Any) -> Any:
        raise AssertionError("it is not called")

    warm_up(model(infer), [])


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda requests: 1 / 0, "ZeroDivisionError"),
        (lambda requests: [{"z": requests[0]["x"]}], "returned no output `y`"),
        (lambda requests: [{"y": requests[0]["x"][:1]}], "y"),
        (lambda requests: [], "m"),
    ],
)
def test_what_is_wrong_with_its_answer_fails_the_load(answer: Any, said: str) -> None:
    with pytest.raises(WarmupError, match=r"model m: its warm-up 'first' failed: ") as caught:
        warm_up(model(answer), [warmup()])
    assert said in str(caught.value)


def test_a_stream_is_heard_to_its_end() -> None:
    heard: list[int] = []

    def infer(requests: Any) -> Any:
        for step in range(3):
            heard.append(step)
            yield [{"y": requests[0]["x"]} if step else None]

    warm_up(model(infer, decoupled=True), [warmup(count=1)])
    assert heard == [0, 1, 2]
