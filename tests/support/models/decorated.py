"""Decorated callables for tests of decorators, with their configurations and requests."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from pytriton.decorators import batch
from pytriton.model_config import TensorSpec, TritonModelConfig
from pytriton.proxy.types import Request


def config(*outputs: str, **fields: Any) -> TritonModelConfig:
    specs = [TensorSpec(name, np.float32, (-1,)) for name in outputs]
    return TritonModelConfig("m", outputs=specs, **fields)


def requests_of(*rows: int) -> list[Request]:
    return [Request({"x": np.full((count, 2), count, np.float32)}) for count in rows]


class Scaler:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    @batch
    def __call__(self, x: Any) -> dict[str, Any]:
        return {"y": x * self.factor}

    @batch
    def negated(self, x: Any) -> list[Any]:
        return [-x * self.factor]

    @batch
    async def later(self, x: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"y": x * self.factor}

    @staticmethod
    @batch
    def static(x: Any) -> dict[str, Any]:
        return {"y": x}

    @batch
    @staticmethod
    def static_below(x: Any) -> dict[str, Any]:
        return {"y": x}
