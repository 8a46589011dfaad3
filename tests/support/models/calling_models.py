"""Models that call other models.

Their workers import this module, so slow imports are for type checking only.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytriton.model_config import ModelConfig
from support.models.tensors import X, Y

if TYPE_CHECKING:
    from pytriton.daemon import Model
    from support.models.inference import Array
    from support.real_daemon import RunningDaemon

Serve = Callable[..., "Model"]
Ask = Callable[..., "dict[str, Array]"]
UNBATCHED = ModelConfig(batching=False)
STREAMS = ModelConfig(batching=False, decoupled=True)


def serving(daemon: RunningDaemon) -> Serve:
    """Yield a function that registers a model, which is served until the daemon ends."""

    def register(infer: Any, name: str, **options: Any) -> Model:
        options = {"inputs": X, "outputs": Y, "max_inflight_batches": 1, **options}
        return daemon.client.register(infer, name, progress=False, **options)

    return register


class Fails:
    """Fails as its input says; otherwise doubles it."""

    def __call__(self, requests: Any) -> Any:
        if requests[0]["x"][0] < 0:
            raise ValueError("no negative numbers, please")
        if requests[0]["x"][0] == 666:
            os._exit(7)
        return [{"y": 2 * request["x"]} for request in requests]
