"""Models served by threads of the test's own process."""

from __future__ import annotations

import threading
from typing import Any

from support.models.tensors import X, Y

from pytriton.daemon import DaemonClient, Model
from pytriton.model_config import ModelConfig


def pytriton_threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("pytriton ")]


def serve(client: DaemonClient, infer: Any, name: str = "model", **options: Any) -> Model:
    options = {"config": ModelConfig(max_batch_size=8), **options}
    return client.register(infer, name, X, Y, isolation="thread", progress=False, **options)
