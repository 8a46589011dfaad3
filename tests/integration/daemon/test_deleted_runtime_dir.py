"""A daemon whose runtime directory is deleted: by hand, at logout, or by a cleanup of temporary files."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models.inference import Array, Inference
from support.models.tensors import ONES, X, Y
from support.real_daemon import RunningDaemon, eventually

from pytriton._protocol.exit_codes import ExitCode
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig

#: As soon as that, one that cannot be asked counts as hung.
_HUNG = {"server_probe_interval_s": 0.2, "server_probe_timeout_s": 30.0}


def _register(daemon: RunningDaemon, folder: Path, until: Path) -> None:
    """Register a callable that creates a file when it begins, and responds once another file exists."""

    @batch
    def infer(x: Array) -> dict[str, Array]:
        (folder / "begun").touch()
        while not until.exists():
            time.sleep(0.01)
        return {"y": x * 2}

    config = ModelConfig(max_batch_size=1)
    daemon.client.register(infer, "model", X, Y, config, progress=False)


def _ask(http: str) -> Any:
    connection = Inference("http", http)
    try:
        return connection.infer("model", {"x": ONES})["y"]
    finally:
        connection.close()


def _delete(folder: Path) -> None:
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)  # fails if the daemon creates a file


@pytest.fixture
def asking() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


def test_the_daemon_finishes_requests_in_flight_and_exits(
    asking: ThreadPoolExecutor, tmp_path: Path
) -> None:
    with RunningDaemon.start(**_HUNG) as daemon:
        _register(daemon, tmp_path, tmp_path / "go on")
        asked = asking.submit(_ask, daemon.http)
        eventually((tmp_path / "begun").exists, "the batch has begun")
        _delete(Path(daemon.config.runtime_dir))
        (tmp_path / "go on").touch()
        np.testing.assert_array_equal(asked.result(), ONES * 2)
        assert daemon.process.wait(100) == ExitCode.ERROR


def test_the_daemon_does_not_disturb_its_successor(
    asking: ThreadPoolExecutor, tmp_path: Path
) -> None:
    with RunningDaemon.start(grace_period_s=600) as former:
        _register(former, tmp_path, tmp_path / "never")
        asked = asking.submit(_ask, former.http)
        eventually((tmp_path / "begun").exists, "the batch has begun")
        family = former.children()
        _delete(Path(former.config.runtime_dir))
        with RunningDaemon.start(runtime_dir=former.config.runtime_dir) as daemon:
            _register(daemon, tmp_path, tmp_path / "begun")
            assert former.process.wait(100) == ExitCode.ALREADY_RUNNING
            assert asked.exception() is not None
            eventually(lambda: not any(one.is_running() for one in family), "nothing of it is left")
            np.testing.assert_array_equal(_ask(daemon.http), ONES * 2)
            assert daemon.client.status().state == "ready"
            assert daemon.stop() == ExitCode.OK
