"""The actor that owns a node's daemon: once it is stopped, it starts none again."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.fakes.fake_dispatcher import FakeDispatcher

from pytriton.exceptions import PyTritonDaemonError
from pytriton.fleet.on_ray.actors import NodeActor


def test_it_takes_the_daemon_that_runs_and_starts_none_after_its_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeDispatcher()
    commands: list[str] = []

    def run(command: list[str], **_: Any) -> Any:
        commands.append(command[3])
        fake.die()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    actor = NodeActor(str(Path(fake.rundir.path)), ["--http-port", "0"])
    actor.stop()
    with pytest.raises(PyTritonDaemonError, match="being stopped"):
        actor.look()
    assert commands == ["stop"]
    fake.close()
