"""A server that two systems share."""

from __future__ import annotations

from pathlib import Path

from benchmarks import workloads
from benchmarks.deployment import Deployment
from benchmarks.load.wire import Request
from benchmarks.systems import System

SERVER = "import signal\nsignal.pause()\n"


def waiting(name: str, script: Path) -> System:
    """Return a system whose server does nothing."""
    return System(
        name,
        name,
        str(script),
        lambda _, __, ports: Request(f"{ports.http_base}/{name}", b"", lambda *_: None, {}),
    )


def test_only_the_deployment_that_started_a_server_stops_it(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    (load,) = workloads.select("A")
    with Deployment(waiting("first", script), load) as first:
        second = first.shared_by(waiting("second", script))
        assert second.process is first.process
        first.sizes["http"] = 1
        assert second.sizes == {}
        port = first.ports.http
        urls = [one.request("http").url for one in (first, second)]
        assert urls == [f"http://127.0.0.1:{port}/first", f"http://127.0.0.1:{port}/second"]
        second.stop()
        assert first.process.poll() is None
        assert first.folder.is_dir()
    assert first.process.poll() is not None
    assert not first.folder.exists()
