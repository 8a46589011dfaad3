"""The actor that owns a node's daemon: once it is stopped, it starts none again."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.fakes.fake_dispatcher import FakeDispatcher

from pytriton.exceptions import PyTritonDaemonError
from pytriton.fleet.on_ray.actors import NodeActor
from pytriton.ipc import messages


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


def test_it_asks_for_registrations_only_when_they_have_changed() -> None:
    fake = FakeDispatcher()
    spec = messages.ModelSpec("m", 1, {}, messages.World("py"), instances=2)
    now = messages.Registrations([messages.KeptRegistration(spec, "digest")], "one")

    def told(message: Any) -> list[messages.Registrations]:
        return [messages.Registrations([], "one") if message.known == "one" else now]

    fake.answers[messages.GetRegistrations] = told
    actor = NodeActor(str(Path(fake.rundir.path)), [])
    assert [actor.look()[1] for _ in range(3)] == [{"m": ("digest", 2)}] * 3
    asked = [one.known for one in fake.heard if isinstance(one, messages.GetRegistrations)]
    assert asked == ["", "one", "one"]
    fake.close()
