"""Daemons shared by test modules are lent in a fresh state or not at all, and nothing is left behind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support import real_daemon
from support.daemon_pool import DaemonPool
from support.models.tensors import X, Y
from support.real_daemon import RunningDaemon, eventually


@pytest.fixture(scope="module")
def keeping() -> Iterator[DaemonPool]:
    with closing(DaemonPool()) as daemons:
        yield daemons


def register(daemon: RunningDaemon) -> None:
    daemon.client.register(lambda requests: requests, "model", X, Y, progress=False)


def test_a_lent_daemon_has_no_models_and_an_empty_log(keeping: DaemonPool) -> None:
    with keeping.lend() as daemon:
        register(daemon)
        assert "daemon started" in daemon.said()
    with keeping.lend() as again:
        assert again is daemon
        assert (again.client.models(), again.workers(), again.said()) == ([], [], "")
        with keeping.lend() as other:
            assert other is not again
    assert (again.process.poll(), other.process.poll()) == (0, None)


def test_a_daemon_without_a_server_is_not_lent_again(keeping: DaemonPool) -> None:
    with keeping.lend() as daemon:
        server = daemon.client.status().server
        daemon.server.kill()
        eventually(lambda: daemon.client.status().server != server, "its exit is noticed")
    with keeping.lend() as other:
        assert other is not daemon
    assert daemon.process.poll() == 0


def test_leftovers_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the daemon is returned, and again when it has exited."""
    monkeypatch.setattr(real_daemon, "_REGIONS_S", 0.5)
    lent = contextlib.ExitStack()
    daemon = lent.enter_context(DaemonPool(gone_s=0.5).lend())
    region = Path(f"/dev/shm/pytriton-{daemon.process.pid}-left")
    region.touch()
    with pytest.raises(AssertionError, match=f"nothing left: .*{region.name}") as failure:
        lent.close()
    region.unlink()
    assert f"nothing left of models: ['{region.name}']" in str(failure.value.__context__)
    assert daemon.process.poll() == 0
