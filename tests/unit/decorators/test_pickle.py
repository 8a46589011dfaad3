"""Decorated callables survive cloudpickle, even into a process without this one's modules."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from pytriton.declaration import declaration_of
from pytriton.decorators import (
    batch,
    fill_optionals,
    first_value,
    group_by_values,
    sample,
    set_triton_context,
)
from pytriton.model_config import TensorSpec, TritonModelConfig
from pytriton.proxy.types import Request


@batch
def at_module_level(x: Any) -> dict[str, Any]:
    return {"y": x * 2}


class Model:
    factor = 2

    @batch
    def __call__(self, x: Any) -> dict[str, Any]:
        return {"y": x * self.factor}

    @batch
    def method(self, x: Any) -> dict[str, Any]:
        return {"y": x * self.factor}


def closure(factor: int) -> Any:
    @batch
    def infer(x: Any) -> dict[str, Any]:
        return {"y": x * factor}

    return infer


def stack() -> Any:
    @fill_optionals(k=np.array([2]))
    @batch
    @group_by_values("k")
    @first_value("k")
    def infer(x: Any, k: Any) -> dict[str, Any]:
        return {"y": x * k}

    return infer


@pytest.mark.parametrize(
    "infer",
    [
        at_module_level,
        closure(2),
        batch(lambda x: {"y": x * 2}),
        sample(lambda x: {"y": x * 2}),
        Model(),
        Model().method,
        batch(Model().method.__wrapped__.__get__(Model())),  # type: ignore[attr-defined]
        stack(),
    ],
    ids=["function", "closure", "lambda", "sample", "object", "method", "bound", "stack"],
)
def test_round_trip_in_one_process(infer: Any) -> None:
    copy = cloudpickle.loads(cloudpickle.dumps(infer))
    [response] = copy([Request({"x": np.ones((1, 1))})])
    assert float(response["y"][0, 0]) == 2


MAKE = """
    import pathlib, sys, cloudpickle, numpy as np
    from pytriton.declaration import declare
    from pytriton.decorators import batch, group_by_values, triton_context
    from pytriton.model_config import ModelConfig, Tensor

    FACTOR = 3
    X, Y = Tensor((1,), np.float32, "x"), Tensor((1,), np.float32, "y")

    @declare(inputs=[X], outputs=[Y], config=ModelConfig(max_batch_size=8))
    @batch
    def function(x):
        return {"y": x * FACTOR}

    class Model:
        def __init__(self):
            self.factor = FACTOR

        @batch
        @triton_context
        def __call__(self, x, triton_context):
            return [x * self.factor]

        @batch
        async def later(self, x):
            return {"y": x * self.factor}

    def made(factor):
        @batch
        def stream(x):
            yield {"y": x * factor}
        return stream

    callables = [function, batch(lambda x: {"y": x * FACTOR}), Model(), Model().later, made(3)]
    pathlib.Path(sys.argv[1]).write_bytes(cloudpickle.dumps(callables))
"""


def test_round_trip_from_the_main_module_of_another_process(tmp_path: Path) -> None:
    import asyncio

    script, pickled = tmp_path / "script.py", tmp_path / "callables"
    script.write_text(textwrap.dedent(MAKE))
    subprocess.run([sys.executable, str(script), str(pickled)], check=True, timeout=60)
    function, lambda_, model, later, stream = cloudpickle.loads(pickled.read_bytes())
    requests = [Request({"x": np.ones((1, 1), np.float32)}) for _ in range(2)]
    for responses in (
        function(requests),
        lambda_(requests),
        asyncio.run(later(requests)),
        *stream(requests),
    ):
        assert [float(response["y"][0, 0]) for response in responses] == [3, 3]
    set_triton_context(model, TritonModelConfig("m", outputs=[TensorSpec("z", np.float32, (1,))]))
    assert [float(response["z"][0, 0]) for response in model(requests)] == [3, 3]
    declared = declaration_of(function)
    assert declared is not None
    assert declared.name == "function"
    assert declared.config is not None
    assert declared.config.max_batch_size == 8


def test_the_pickle_of_a_decorated_lambda_stays_small() -> None:
    plain = len(cloudpickle.dumps(lambda x: {"y": x}))
    assert len(cloudpickle.dumps(batch(lambda x: {"y": x}))) < plain + 2000
