"""The daemon's status for each state of its parts."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fakes.simulated_daemon import SimulatedDaemon, successive_daemons
from support.real_daemon import eventually

from pytriton._host.service_manager.systemd import ServiceState
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol import messages
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton.dispatcher.daemon_status import DaemonStatus
from pytriton.dispatcher.scaling.memory_policy import KnownSize


def _info(name: str, state: str = "ready") -> messages.ModelInfo:
    return messages.ModelInfo(name, 1, state, [])


class Parts:
    """The parts of the daemon that the status reads."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.registered: list[messages.ModelInfo] = []
        self.in_repositories: list[messages.ModelInfo] = []
        self.not_yet_restored: list[messages.ModelInfo] = []
        self.starting: messages.ModelInfo | None = None
        self.problems: list[str] = []
        self.is_healthy = True
        self.server_problem: str | None = None
        self.asked_of: list[tuple[str, Path]] = []
        server = SimpleNamespace(
            ready=True, info=lambda: messages.ServerInfo("ready", 7, http_url="http://x:8000")
        )
        self.server: Any = server
        self.readiness: Any = SimpleNamespace(announced=True, problem=lambda: "")
        registry: Any = _Registry(self)
        known = SimpleNamespace(infos=lambda url: self.in_repositories if url else None)
        repository_models: Any = SimpleNamespace(records=known, problems=list)
        watch: Any = SimpleNamespace(problem=lambda: self.server_problem)
        self.status = DaemonStatus(
            DaemonConfig(runtime_dir=str(folder), state_dir=str(folder / "kept"), **settings),
            RuntimeDir(folder),
            server=cast(Any, self.server),
            watch=watch,
            registry=registry,
            repository_models=repository_models,
            readiness=cast(Any, self.readiness),
            openai=cast(Any, SimpleNamespace(url="", problem=lambda: "")),
            advice=None,
            memory=list,
            unpersisted=list,
            management_urls=list,
            is_healthy=lambda: self.is_healthy,
        )


class _Registry:
    """The registrations of `Parts`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.served = self
        self.restoring = SimpleNamespace(
            infos=lambda served, url: [
                one for one in parts.not_yet_restored if one.name not in served
            ]
        )

    def __iter__(self) -> Any:
        for info in self._parts.registered:
            yield _registration(self._parts, info)

    def get(self, name: str) -> Any:
        return next((one for one in self if one.spec.name == name), None)

    def find_starting(self, name: str) -> Any:
        info = self._parts.starting
        return _registration(self._parts, info) if info and info.name == name else None

    def problems(self) -> list[str]:
        return self._parts.problems


def _registration(parts: Parts, info: messages.ModelInfo) -> Any:
    def reported(url: str, log_file: Path, cpus: object = None) -> messages.ModelInfo:
        parts.asked_of.append((url, log_file))
        return info

    return SimpleNamespace(spec=SimpleNamespace(name=info.name), info=reported, state=info.state)


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path)


def test_models_are_ordered_by_who_serves_them(parts: Parts, tmp_path: Path) -> None:
    parts.registered = [_info("b"), _info("a")]
    parts.in_repositories = [_info("r")]
    parts.not_yet_restored = [_info("a", "starting"), _info("k", "starting")]
    reported = [(one.name, one.state) for one in parts.status.model_infos()]
    assert reported == [("b", "ready"), ("a", "ready"), ("r", "ready"), ("k", "starting")]
    log_file = RuntimeDir(tmp_path).log_file("b")
    assert parts.asked_of[0] == ("http://x:8000", log_file)


def test_models_that_change_while_they_are_listed(parts: Parts) -> None:
    parts.registered = [_info("a"), _info("b"), _info("c")]
    parts.not_yet_restored = [_info("k", "restoring"), _info("l", "restoring")]
    listed = parts.status.each_model()
    assert next(listed).name == "a"
    parts.registered = [
        _info("a"),
        _info("c", "degraded"),
        _info("k"),
    ]  # b is unregistered, k restored
    parts.not_yet_restored = [_info("l", "restoring")]
    assert next(listed).state == "degraded"
    assert next(listed).name == "l"
    parts.registered += [_info("l"), _info("n")]
    assert [one.name for one in listed] == ["k", "n"]


def test_a_model_is_found_whatever_serves_it(parts: Parts) -> None:
    parts.registered, parts.in_repositories = [_info("a")], [_info("r", "unloaded")]
    parts.not_yet_restored = [_info("a", "failed"), _info("k", "restoring")]
    parts.starting = _info("s", "starting")
    found = {name: parts.status.find_model(name) for name in "arksx"}
    states = {name: info and info.state for name, info in found.items()}
    assert states == {"a": "ready", "r": "unloaded", "k": "restoring", "s": "starting", "x": None}


def test_the_status_lists_every_problem(parts: Parts, tmp_path: Path) -> None:
    status = parts.status.status()
    assert (status.state, status.pid, status.problems) == ("starting", os.getpid(), [])
    assert (status.runtime_dir, status.state_dir) == (str(tmp_path), str(tmp_path / "kept"))
    parts.status.phase, parts.status.control_tcp = "ready", "10.0.0.7:9999"
    parts.server_problem = "tritonserver failed 3 times in a row"
    parts.problems = ["model m: instance 0 is in a crash loop"]
    parts.status.advice = "this tritonserver has known faults"
    status = parts.status.status()
    assert (status.state, status.control_tcp) == ("ready", "10.0.0.7:9999")
    assert status.problems == [
        "tritonserver failed 3 times in a row",
        "model m: instance 0 is in a crash loop",
        "this tritonserver has known faults",
    ]


@pytest.fixture
def writing(tmp_path: Path) -> Iterator[SimulatedDaemon]:
    """A daemon that writes its events to disk."""
    with successive_daemons(tmp_path) as start:
        yield start(event_log_size=100_000)


def test_a_full_state_directory_is_reported_until_it_has_room(
    writing: SimulatedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def problems() -> list[str]:
        writing.settle()
        return writing.loop.ask(writing.services.status.status).problems

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    writing.served(writing.client.register("m"))
    assert problems() == []
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        writing.answered(writing.client.ask(messages.Scale("m", 2)))  # makes an event, too
        writing.services.sizes.write({"m": KnownSize("x", 1, 0, {}, True)})
        eventually(lambda: len(problems()) == 2, lambda: str(problems()))
    assert problems() == [
        "cannot store events in the state directory, only in memory: No space left on device",
        "model sizes cannot be stored in the state directory for the next start: "
        "[Errno 28] No space left on device",
    ]
    writing.served(writing.client.ask(messages.Scale("m", 2)))
    writing.services.sizes.write({})
    eventually(lambda: problems() == [], lambda: str(problems()))


def test_without_persistence_there_is_no_state_directory(tmp_path: Path) -> None:
    assert Parts(tmp_path, ephemeral=True).status.status().state_dir == ""


def test_the_service_manager_gets_the_number_of_ready_models(parts: Parts) -> None:
    parts.registered = [_info("a"), _info("b", "starting")]
    assert parts.status.for_service_manager() == ServiceState(
        "starting: 1 of 2 models ready", healthy=True, busy=True
    )
    parts.status.phase = "ready"
    assert parts.status.for_service_manager() == ServiceState(
        "ready: 1 of 2 models ready", healthy=True, busy=False
    )
    parts.registered = [_info("a"), _info("b", "degraded")]  # it serves
    assert parts.status.for_service_manager().text == "ready: 2 of 2 models ready; degraded b"
    parts.readiness.announced = False  # models are being restored
    assert parts.status.for_service_manager().busy


@pytest.mark.parametrize(
    ("problem", "reported"),
    [
        (None, "tritonserver is being started again"),
        ("tritonserver failed twice", "tritonserver failed twice"),
    ],
)
def test_a_tritonserver_that_is_down_is_reported(
    parts: Parts, problem: str | None, reported: str
) -> None:
    parts.status.phase = "ready"
    parts.server.ready, parts.server_problem = False, problem
    assert parts.status.for_service_manager().text == f"ready: 0 of 0 models ready; {reported}"


def test_a_stopping_daemon_is_not_unhealthy(parts: Parts) -> None:
    parts.status.phase = "ready"
    assert parts.status.for_service_manager().healthy
    parts.is_healthy = False
    assert not parts.status.for_service_manager().healthy
    parts.status.phase, parts.status.why_stopped = "stopping", "SIGTERM"
    assert parts.status.for_service_manager() == ServiceState(
        "stopping: SIGTERM", healthy=True, busy=True
    )


def test_status_without_models_asks_no_model(parts: Parts) -> None:
    parts.registered = [_info("m")]
    assert parts.status.status(models=False).models == []
    assert parts.asked_of == []
    assert [one.name for one in parts.status.status().models] == ["m"]
