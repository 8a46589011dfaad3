"""The actor that owns a node's daemon: once stopped, it starts no other."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import msgspec
import pytest
from fakes.fake_dispatcher import SERVER, FakeDispatcher, status
from fakes.fleet.ray import no_actors

from pytriton._protocol import messages
from pytriton.exceptions import DaemonNotRunningError, PyTritonDaemonError
from pytriton.fleet.balancer.layout import node_of
from pytriton.fleet.on_ray.actors import NodeActor, _balancer_view, _owner_of
from pytriton.fleet.on_ray.environments import VARIABLE


@pytest.fixture
def fake() -> Iterator[FakeDispatcher]:
    """A node's running daemon."""
    with closing(FakeDispatcher()) as made:
        yield made


@pytest.fixture
def actor(fake: FakeDispatcher) -> NodeActor:
    """The actor that owns that daemon."""
    return NodeActor(str(fake.rundir.path), [], "", "n", no_actors())


def test_a_running_daemon_is_adopted_and_none_is_started_after_the_stop(
    fake: FakeDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[str] = []

    def run(command: list[str], **_: Any) -> Any:
        commands.append(command[3])
        fake.die()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    actor = NodeActor(str(fake.rundir.path), ["--http-port", "0"], "", "n", no_actors())
    actor.stop()
    with pytest.raises(PyTritonDaemonError, match="being stopped"):
        actor.report_state()
    assert commands == ["stop"]


def test_a_starting_daemon_is_stopped_with_the_fleet(
    fake: FakeDispatcher, actor: NodeActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would keep running unnoticed."""
    commands: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def run(command: list[str], **_: Any) -> Any:
        if command[3] == "start":
            begun.set()
            go_on.wait()
        commands.append(command[3])
        return subprocess.CompletedProcess(command, 1, "", "no")

    monkeypatch.setattr(subprocess, "run", run)
    fake.die()
    with ThreadPoolExecutor(2) as pool:
        look = pool.submit(actor.report_state)
        assert begun.wait(60)
        stop = pool.submit(actor.stop)
        go_on.set()
        stop.result()
        assert isinstance(look.exception(), PyTritonDaemonError)
    assert commands == ["start", "stop"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, for unix sockets."""
    with tempfile.TemporaryDirectory(prefix="ptf-") as found:
        yield Path(found)


@pytest.mark.parametrize("left_by", ["a former node", "a node that lives", "another cluster"])
def test_a_daemon_left_by_a_previous_node_is_adopted(
    monkeypatch: pytest.MonkeyPatch, folder: Path, left_by: str
) -> None:
    """Ray was restarted on that machine: the daemon still serves, and a second one would find its ports in use."""
    here = folder / "f-aaaaaaaa"
    here.mkdir()
    owner = _owner_of(here) if left_by == "another cluster" else None
    connected: list[str] = []

    def connect(runtime_dir: str, _: float) -> Any:
        if runtime_dir != str(here) and not started:
            raise DaemonNotRunningError("no")
        connected.append(runtime_dir)
        return runtime_dir

    started: list[str] = []

    def run(command: list[str], **_: Any) -> Any:
        started.append(command[command.index("--runtime-dir") + 1])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("pytriton.fleet.on_ray.actors.connect", connect)
    monkeypatch.setattr(subprocess, "run", run)
    ray = no_actors()
    alive = ["bbbbbbbb11", *(["aaaaaaaa22"] if left_by == "a node that lives" else [])]
    ray.nodes = lambda: (
        [{"NodeID": one, "Alive": True} for one in alive]
        + [{"NodeID": "aaaaaaaa33", "Alive": False}]
    )
    actor = NodeActor(str(folder / "f-bbbbbbbb"), [], "", "bbbbbbbb11", ray)
    actor._daemon()
    taken = left_by == "a former node"
    assert connected == [str(here if taken else folder / "f-bbbbbbbb")]
    assert started == ([] if taken else [str(folder / "f-bbbbbbbb")])
    assert (_owner_of(here) is None) is (taken or owner is not None)
    actor.stop()
    assert started[-1] == connected[0]  # that one is stopped with the fleet
    for one in (owner, actor._owner):
        if one is not None:
            os.close(one)


@pytest.mark.parametrize("how", ["anybody may write", "another's", "another's link"])
def test_a_folder_that_others_may_replace_is_refused(
    monkeypatch: pytest.MonkeyPatch, folder: Path, how: str
) -> None:
    """Somebody's own daemon there would receive registrations with their variables."""
    shared = folder / "ptf"
    if how == "another's link":
        (folder / "own").mkdir()
        shared.symlink_to("own")
    else:
        shared.mkdir()
    if how == "anybody may write":
        shared.chmod(0o777)
    else:
        _is_of_user(monkeypatch, shared, 4711)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a daemon was started"))
    actor = NodeActor(str(shared / "f-bbbbbbbb"), [], "", "bbbbbbbb11", no_actors())
    with pytest.raises(PyTritonDaemonError, match="--runtime-dir"):
        actor.report_state()


def test_a_daemon_of_another_user_is_not_adopted(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """Its folder may look like that of a previous node, and be open to all."""
    left = folder / "f-aaaaaaaa"
    left.mkdir()
    _is_of_user(monkeypatch, left, 4711)
    connected: list[str] = []
    own = str(folder / "f-bbbbbbbb")

    def connect(runtime_dir: str, _: float) -> Any:
        connected.append(runtime_dir)
        if len(connected) <= 2:
            raise DaemonNotRunningError("no")
        return runtime_dir

    done = subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr("pytriton.fleet.on_ray.actors.connect", connect)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    actor = NodeActor(own, [], "", "bbbbbbbb11", no_actors())
    actor._daemon()
    assert connected == [own] * 3
    assert actor._owner is not None
    os.close(actor._owner)


def _is_of_user(monkeypatch: pytest.MonkeyPatch, folder: Path, user: int) -> None:
    """Make a folder, or a link, appear to belong to another user."""
    real = os.lstat

    def lstat(path: Any, **given: Any) -> Any:
        found = real(path, **given)
        if Path(path) != folder:
            return found
        return os.stat_result([*found[:4], user, *found[5:]])

    monkeypatch.setattr(os, "lstat", lstat)


def test_registrations_are_requested_only_if_they_changed(
    fake: FakeDispatcher, actor: NodeActor
) -> None:
    spec = messages.ModelSpec("m", 1, {}, messages.WorkerEnvironment("py"), instances=2)
    now = messages.Registrations([messages.KeptRegistration(spec, "digest")], "one")

    def reported(message: Any) -> list[messages.Registrations]:
        return [messages.Registrations([], "one") if message.known == "one" else now]

    fake.answers[messages.GetRegistrations] = reported
    facts = [msgspec.msgpack.decode(actor.report_state()[2] or b"")[1] for _ in range(3)]
    assert facts == [{"m": ["digest", 2]}] * 3
    asked = [one.known for one in fake.heard if isinstance(one, messages.GetRegistrations)]
    assert asked == ["", "one", "one"]


def test_a_model_whose_interpreter_is_gone_is_registered_again(
    fake: FakeDispatcher, actor: NodeActor, tmp_path: Path
) -> None:
    """`uv run` deletes its environment when it ends, for example because its holder was killed."""
    python = tmp_path / "python"
    python.touch()
    world = messages.WorkerEnvironment(str(python), env={VARIABLE: "digest key"})
    spec = messages.ModelSpec("m", 1, {}, world, instances=2)
    now = messages.Registrations([messages.KeptRegistration(spec, "another digest")], "one")
    fake.answers[messages.GetRegistrations] = lambda _: [now]
    actor._environments._holders["key"] = Mock()

    def reported() -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = msgspec.msgpack.decode(actor.report_state()[2] or b"")[1]
        return found

    assert reported() == {"m": ["digest", 2]}
    python.unlink()
    assert reported() == {"m": ["", 2]}


def test_the_nodes_state_is_reported_only_if_it_changed(
    fake: FakeDispatcher, actor: NodeActor
) -> None:
    """Counters of batches in the status change constantly, and need no new view."""
    batches = iter(range(100))
    models = ["m"]

    def reported(_: Any) -> list[messages.Status]:
        instance = messages.InstanceInfo(0, "ready", 1, batches=next(batches))
        return [status(*(messages.ModelInfo(name, 1, "ready", [instance]) for name in models))]

    fake.answers[messages.GetStatus] = reported
    fake.answers[messages.GetRegistrations] = lambda _: [messages.Registrations([], "one")]
    first, key, facts = actor.report_state()
    assert facts is not None
    later, same, nothing = actor.report_state(key)
    assert later != first
    assert (same, nothing) == (key, None)
    models.append("n")
    assert actor.report_state(key)[1] != key


def test_placed_models_are_in_the_status(fake: FakeDispatcher, actor: NodeActor) -> None:
    """Including a model registered during a poll: otherwise `register` returns before it is shown."""
    spec = messages.ModelSpec("m", 1, {}, messages.WorkerEnvironment("py"), instances=2)
    asked: list[type] = []

    def registrations(_: Any) -> list[messages.Registrations]:
        asked.append(messages.GetRegistrations)
        kept = [messages.KeptRegistration(spec, "digest")] if len(asked) > 1 else []
        return [messages.Registrations(kept, f"{len(asked)}")]

    def reported(_: Any) -> list[messages.Status]:
        asked.append(messages.GetStatus)
        return [status(*([messages.ModelInfo("m", 1, "ready", [])] if len(asked) > 1 else []))]

    fake.answers[messages.GetRegistrations] = registrations
    actor._daemon()  # which asks for the status, too
    fake.answers[messages.GetStatus] = reported
    encoded, _, facts = actor.report_state()
    assert len(asked) == 2
    shown = [one["name"] for one in msgspec.msgpack.decode(encoded)["models"]]
    placed = list(msgspec.msgpack.decode(facts or b"")[1])
    assert set(placed) <= set(shown), (placed, shown)


def test_concurrent_polls_keep_keys_and_registrations_consistent(
    fake: FakeDispatcher, actor: NodeActor
) -> None:
    """Otherwise the newest key would stand for older registrations, which would never be sent again."""
    fake.answers[messages.GetStatus] = lambda _: [status()]
    fake.answers[messages.GetRegistrations] = lambda _: [messages.Registrations([], "none")]
    spec = messages.ModelSpec("m", 1, {}, messages.WorkerEnvironment("py"), instances=2)
    kept = {"old": "first digest", "new": "second digest"}
    newest = ["old"]

    class Answers:
        """The daemon's answers; while the first one is read, another poll gets a newer one."""

        def __init__(self, state: str) -> None:
            self.state = state

        @property
        def registrations(self) -> list[messages.KeptRegistration]:
            if newest == ["old"]:
                newest[0] = "new"
                actor.report_state()
            return [messages.KeptRegistration(spec, kept[self.state])]

    client = actor._daemon()
    client.changed_registrations = lambda known: (  # type: ignore[method-assign]
        None if known == newest[0] else cast(messages.Registrations, Answers(newest[0]))
    )
    actor.report_state()
    facts = msgspec.msgpack.decode(actor.report_state()[2] or b"")[1]
    assert facts == {"m": ["second digest", 2]}


def test_failed_starts_of_a_daemon_are_not_retried_constantly(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """Each attempt takes seconds of CPU time; changed flags are tried immediately."""
    tried: list[str] = []
    now = [1000.0]

    def run(command: list[str], **_: Any) -> Any:
        tried.append(command[-1])
        return subprocess.CompletedProcess(command, 5, "", "port 8000 is taken")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr("pytriton.fleet.on_ray.actors.time.monotonic", lambda: now[0])
    actor = NodeActor(str(folder / "f-0"), ["--a"], "", "n", no_actors())
    for _ in range(20):
        with pytest.raises(PyTritonDaemonError, match="port 8000 is taken"):
            actor.report_state("", ["--a"])
        now[0] += 1.0
    assert tried == ["--a"] * 3  # after 5 s, after 10 s more
    with pytest.raises(PyTritonDaemonError, match="port 8000 is taken"):
        actor.report_state("", ["--b"])
    assert tried[3:] == ["--b"]


def test_balancers_get_everything_that_they_use_of_a_status() -> None:
    lease = messages.Lease("x", 1.0, 0.1)
    infos = [messages.ModelInfo("m", 1, "ready", [], lease=lease, route="/text/m")]
    server = msgspec.structs.replace(SERVER, http_url="http://h:1", grpc_url="grpc://h:2")
    whole = msgspec.structs.replace(status(*infos), server=server)
    assert node_of("a", _balancer_view(whole)) == node_of("a", whole)


#: Lowers its priority, as Ray does with an actor's, and shows whether it may raise it again, and that of other processes.
_OF_LOW_PRIORITY = """
import os, subprocess
from pytriton.fleet.on_ray.actors import priority_of_parent

def shown():
    print(subprocess.run(["nice"], stdout=subprocess.PIPE, text=True).stdout.strip())

os.nice(2)
try:
    os.nice(-1)
    os.nice(1)
    print("permitted")
except PermissionError:
    print("not permitted")
with priority_of_parent():
    shown()
shown()
"""


@pytest.mark.programs
def test_a_daemon_does_not_inherit_the_low_priority_of_an_actor() -> None:
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    low = min(usual + 2, 19)
    actor = subprocess.run(
        [sys.executable, "-c", _OF_LOW_PRIORITY], capture_output=True, text=True, check=True
    )
    permitted, within, after = actor.stdout.splitlines()
    if permitted == "permitted":
        assert (int(within), actor.stderr) == (usual, "")
    else:
        assert int(within) == low
        assert f"low priority of Ray's actors (nice {low})" in actor.stderr
    assert int(after) == low
