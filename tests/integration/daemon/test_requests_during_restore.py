"""Requests for models that a daemon is restoring after it was killed: they wait, and clients notice nothing.

Otherwise clients would get "unknown model" for seconds, and treat that as final.
"""

from __future__ import annotations

import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.models.inference import infer_once
from support.models.tensors import ONES, X, Y
from support.real_daemon import FRONT, RunningDaemon

#: Each starts two daemons.
pytestmark = pytest.mark.timeout(400)


def _slow(gate: Path, ends: Path) -> Callable[[], Any]:
    """Return a factory that waits until a file exists, and fails if another one does."""

    def make() -> Any:
        while not gate.exists():
            time.sleep(0.01)
        if ends.exists():
            raise ValueError("its weights have gone")
        return lambda requests: [{"y": request["x"] + 1} for request in requests]

    return make


@pytest.fixture(params=["native", "python"])
def restarted(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[RunningDaemon, Path]]:
    """A daemon restarted after a kill, whose two persisted models load once a file exists.

    The second model can no longer be loaded.
    """
    gate, ends = tmp_path / "gate", tmp_path / "ends"
    settings = {"state_dir": str(tmp_path / "state"), "proxy": request.param}
    gate.touch()
    with RunningDaemon.start(**settings) as daemon:
        daemon.client.register(_slow(gate, tmp_path / "no file"), "slow", X, Y, factory=True)
        daemon.client.register(_slow(gate, ends), "broken", X, Y, factory=True)
        daemon.stop(signal.SIGKILL)
    gate.unlink()
    ends.touch()
    with RunningDaemon.start(**settings) as daemon:
        yield daemon, gate


def _asked(daemon: RunningDaemon, protocol: str) -> float:
    return float(infer_once(daemon, "slow", {"x": ONES}, protocol)["y"][0, 0])


def _status(daemon: RunningDaemon, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://{daemon.http}/v2/{path}", timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


@pytest.mark.skipif(FRONT == "triton", reason="NVIDIA's frontend refuses requests meanwhile")
def test_requests_wait_until_their_model_is_restored_or_fails(
    restarted: tuple[RunningDaemon, Path],
) -> None:
    daemon, gate = restarted
    with ThreadPoolExecutor(5) as clients:
        answers = [
            clients.submit(_asked, daemon, protocol) for protocol in ("http", "grpc", "grpc")
        ]
        metadata, broken = (
            clients.submit(_status, daemon, f"models/{name}") for name in ("slow", "broken")
        )
        probes = [f"models/slow{version}/ready" for version in ("", "/versions/1")]
        assert [_status(daemon, probe) for probe in probes] == [400, 400]  # and are not held up
        assert _status(daemon, "health/ready") == 400
        assert _status(daemon, "models/unknown") == 404
        assert not any([*[one.done() for one in answers], metadata.done(), broken.done()])
        gate.touch()
        assert [one.result(60) for one in answers] == [2, 2, 2]
        assert metadata.result(60) == 200
        assert broken.result(60) == 404
        assert _status(daemon, "models/broken") == 404
        assert [_status(daemon, probe) for probe in probes] == [200, 200]
