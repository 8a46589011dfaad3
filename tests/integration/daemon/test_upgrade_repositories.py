"""An upgrade of a daemon with repository models, some in workers, some run by tritonserver itself."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from support.load.under_load import under_load
from support.models import repositories
from support.models.inference import Inference
from support.real_daemon import RunningDaemon, eventually

CONFIG = repositories.PYTHON_CONFIG.replace("dims: [ 4 ]", "dims: [ -1 ]")
ALL = {"five": "ready workers", "pipe": "ready tritonserver", "stock": "ready tritonserver"}
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`five` runs in workers, `stock` in tritonserver's own python backend; `pipe` is an ensemble of both."""
    folder: Path = tmp_path_factory.mktemp("models")
    for name in ("five", "stock"):
        code = {"1/model.py": repositories.PYTHON_MODEL.encode()}
        repositories.add(folder, name, code, CONFIG)
    repositories.add_ensemble(folder, "pipe", ["five", "stock"])
    config = folder / "pipe" / "config.pbtxt"
    config.write_text(config.read_text().replace("dims: [ 4 ]", "dims: [ -1 ]"))
    return folder


def states(daemon: RunningDaemon) -> dict[str, str]:
    """Return the state and the server of each model in the repository index."""
    return {one.name: f"{one.state} {one.served_by}".strip() for one in daemon.client.repository()}


def served_by(daemon: RunningDaemon) -> list[int | None]:
    """Return the pids of tritonserver and of all workers."""
    status = daemon.client.status()
    return [status.server.pid, *(each.pid for one in status.models for each in one.instances)]


def all_are_ready(daemon: RunningDaemon, besides: int) -> bool:
    """Return whether a new tritonserver serves all models."""
    status = daemon.client.status()
    if status.server.state != "ready" or status.server.pid == besides:
        return False
    return {one.state for one in status.models} == {"ready"}


def test_models_of_repositories_are_served_during_an_upgrade(repository: Path) -> None:
    with RunningDaemon.start(
        frontend="native",
        model_repository=(str(repository),),
        model_control_mode="poll",
        tritonserver_options={"repository-poll-secs": "0.2"},
        python_backend_model=("stock",),
    ) as daemon:
        eventually(lambda: states(daemon) == ALL, "all models are there")
        before = served_by(daemon)
        with under_load(daemon, "pipe") as load:
            load.wait(20)
            daemon.client.upgrade()
            load.wait(20)
        assert set(load.answers) == {25.0}
        assert states(daemon) == ALL
        assert served_by(daemon) == before

        # What is done with them afterwards: the files of one change, one is loaded anew, tritonserver ends.
        changed = repositories.PYTHON_MODEL.replace("5 * x", "7 * x")
        (repository / "five" / "1" / "model.py").write_text(changed)
        inference = Inference("grpc", daemon.grpc)
        ones = {"x": np.ones((1, 2), np.float32)}
        eventually(
            lambda: inference.infer("pipe", ones)["y"].tolist() == [[35.0, 35.0]], "it follows"
        )
        daemon.client.load_model("stock")
        daemon.client.upgrade()
        server = daemon.client.status().server.pid
        assert server is not None
        os.kill(server, signal.SIGKILL)
        eventually(lambda: all_are_ready(daemon, besides=server), "all models are there again")
        # Laid out by the first version for `stock`: the others had it there before tritonserver could end.
        assert daemon.said().count("own python backend is needed") == 1
        inference.close()
        with under_load(daemon, "pipe") as load:
            load.wait(5)
        assert set(load.answers) == {35.0}
        daemon.client.unload_model("five")
        assert states(daemon)["five"] == "unloaded"
