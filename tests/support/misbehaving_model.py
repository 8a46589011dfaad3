"""A callable that crashes, hangs or hoards memory on request, and models of it that are served for one test.

Each of its workers imports this module, so slow imports are for type checking only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.model_config import ModelConfig
from support.models.tensors import X, Y

if TYPE_CHECKING:
    from pytriton.daemon import Model
    from support.real_daemon import RunningDaemon

#: First element of a request, by what the callable below does.
ECHO, KILL, KILL_ONCE, SEGFAULT, HANG, PID, LEAK, FORK = 1, 9, 10, 11, 12, 13, 14, 15

#: Only tritonserver validates this: a control needs two values, for false and true.
_ONE_VALUE = {
    "control_input": [
        {"name": "z", "control": [{"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [1]}]}
    ]
}

Serve = Callable[..., "Model"]


def refused() -> ModelConfig:
    """Return a configuration that tritonserver refuses. Built lazily, because its validation is slow to import."""
    return ModelConfig(extra={"sequence_batching": _ONE_VALUE})


@contextmanager
def serving(daemon: RunningDaemon) -> Iterator[Serve]:
    """Yield a function that registers a callable, by default as "model"; unregister it at the end."""
    served: list[Model] = []

    def register(infer: Any, name: str = "model", **options: Any) -> Model:
        config = options.pop("config", ModelConfig(max_batch_size=8))
        model = daemon.client.register(infer, name, X, Y, config, progress=False, **options)
        served.append(model)
        return model

    yield register
    for model in served:
        model.unregister()


class MisbehavingModel:
    """Does what the first element of the first request says; takes notes in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.leaked: list[Any] = []

    def __call__(self, requests: Any) -> Any:
        what = int(requests[0]["x"][0, 0])
        with open(os.path.join(self.folder, "batches"), "a", encoding="ascii") as notes:
            notes.write(f"{what}\n")
        if what == KILL or (what == KILL_ONCE and not self._seen("killed")):
            os.kill(os.getpid(), signal.SIGKILL)
        if what == SEGFAULT:
            ctypes.string_at(0)
        if what == HANG:
            self._hang_on_purpose()
        if what == LEAK:
            self.leaked.append(np.ones(30 << 20, np.uint8))
        if what == FORK:
            for _ in range(20):
                if os.fork() == 0:
                    signal.pause()
            signal.pause()
        value = os.getpid() if what == PID else None
        return [
            {"y": request["x"] if value is None else np.full_like(request["x"], value)}
            for request in requests
        ]

    def _hang_on_purpose(self) -> None:
        threading.Event().wait()

    def _seen(self, name: str) -> bool:
        path = os.path.join(self.folder, name)
        seen = os.path.exists(path)
        Path(path).touch()
        return seen


def batches(folder: Path, what: int) -> int:
    """Return the number of batches noted by a `MisbehavingModel` whose first element was `what`."""
    return (folder / "batches").read_text().split().count(str(what))
