"""The watch on repositories' files: what it reports as added, changed and removed, and since when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from fakes.simulated_daemon import SimulatedDaemon
from fakes.virtual_time import VirtualLoop
from support.models import repositories

from pytriton.dispatcher.repository.model_folders import Snapshot
from pytriton.dispatcher.repository.repositories import ModelSnapshot, Repositories
from pytriton.dispatcher.repository.watch import FileWatch
from pytriton.dispatcher.upgrade.snapshot import SeenFiles

EVERY_S = 5.0
Start = Callable[..., SimulatedDaemon]


class Files:
    """Repositories as the watch sees them: "a1 b2" means model a with its first files and b with its second."""

    def __init__(self, there: str) -> None:
        self.there = there
        self.former: Mapping[str, ModelSnapshot] = {}

    async def snapshots(self, former: Mapping[str, ModelSnapshot]) -> dict[str, ModelSnapshot]:
        self.former = former
        return {
            model[0]: ModelSnapshot("/r", Snapshot({f"/r/{model[0]}/f": (int(model[1]), 0)}, {}))
            for model in self.there.split()
        }


class Watched:
    """A watch whose polls are reported as text: "+" for models to load, "-" for models to unload."""

    def __init__(self, there: str) -> None:
        self.loop = VirtualLoop()
        asyncio.set_event_loop(self.loop)
        self.files = Files(there)
        self.reported: list[str] = []
        self.fails = False
        self.then = ""  #: what is there when a load is over
        self.watch = FileWatch(cast(Repositories, self.files), EVERY_S, self._follow)

    async def _follow(self, changed: list[str], gone: list[str]) -> None:
        self.reported.append(
            " ".join([*(f"+{name}" for name in changed), *(f"-{one}" for one in gone)])
        )
        self.files.there = self.then or self.files.there
        if self.fails:
            raise RuntimeError("a fault")

    def begin(self) -> None:
        self.loop.run(self.watch.begin())

    def run(self) -> asyncio.Task[None]:
        return self.loop.create_task(self.watch.run())

    def look(self, there: str) -> str:
        """Return the result of the next poll."""
        self.files.there, self.reported = there, []
        self.loop.advance(EVERY_S)
        return self.reported[0] if self.reported else "no look"


@pytest.fixture
def watched() -> Iterator[Watched]:
    one = Watched("a1")
    yield one
    for task in asyncio.all_tasks(one.loop):
        task.cancel()
    one.loop.settle()
    one.loop.close()
    asyncio.set_event_loop(None)


@pytest.mark.parametrize(
    ("looks", "reported"),
    [
        (["a1", "a1"], ["", ""]),
        (["a2", "a2"], ["+a", ""]),
        (["a1 b1", "a1 b2"], ["+b", "+b"]),
        (["", "a1"], ["-a", "+a"]),  # the same files again: it was unloaded meanwhile
        (["b1", "b1"], ["+b -a", ""]),
        (["a2 c1 b1", "b1 a2"], ["+a +c +b", "-c"]),
    ],
)
def test_each_poll_reports_the_changes_since_the_last(
    watched: Watched, looks: list[str], reported: list[str]
) -> None:
    watched.begin()
    watched.run()
    assert [watched.look(there) for there in looks] == reported


def test_changes_before_the_start_are_seen_by_the_first_poll(watched: Watched) -> None:
    """Loading the models in between may take minutes."""
    watched.begin()
    watched.files.there = "a2 b1"
    watched.run()
    assert watched.look("a2 b1") == "+a +b"


def test_a_failed_poll_is_reported_again(watched: Watched) -> None:
    watched.begin()
    watched.run()
    watched.fails = True
    assert [watched.look("a2"), watched.look("a2")] == ["+a", "+a"]
    watched.fails = False
    assert [watched.look("a2"), watched.look("a2")] == ["+a", ""]


def test_changes_are_seen_by_the_next_poll(watched: Watched) -> None:
    """Including what the model's own load has written: the writer is unknown."""
    watched.begin()
    watched.run()
    watched.then = "a3"
    assert watched.look("a2") == "+a"
    assert watched.look("a3") == "+a"
    assert watched.look("a3") == ""


def test_the_next_version_continues_from_the_last_snapshot(watched: Watched) -> None:
    watched.begin()
    handed = msgspec.msgpack.encode(watched.watch.hand_over())
    next_one = FileWatch(cast(Repositories, watched.files), EVERY_S, watched._follow)
    next_one.adopt(msgspec.msgpack.decode(handed, type=SeenFiles))
    assert next_one.hand_over() == watched.watch.hand_over()
    watched.files.there = "a2"
    watched.loop.run(next_one.begin())  # nothing new: the previous version has seen these
    watched.loop.create_task(next_one.run())
    assert watched.look("a2") == "+a"


# ── in a daemon ──────────────────────────────────────────────────────────────────────────────────


def states(sim: SimulatedDaemon) -> dict[str, str]:
    models: Any = sim.loop.run(sim.services.repository_models.index())
    return {one.name: one.state for one in models}


def test_a_model_added_during_other_loads_is_served(start: Start, repository: Path) -> None:
    sim = start(
        model_control_mode="poll",
        tritonserver_options={"repository-poll-secs": "5"},
        usual_plan="hangs",
    )
    repositories.add(repository, "late", {"1/model.py": b""}, 'backend: "python"')
    sim.usual_plan = "serves"
    sim.loop.ask(sim.alive("py")[0].loaded)
    sim.advance(6.0)
    assert sim.is_served("late")


def test_a_failed_model_that_is_removed_does_not_prevent_readiness(
    start: Start, repository: Path
) -> None:
    sim = start(model_control_mode="poll", tritonserver_options={"repository-poll-secs": "5"})
    assert (states(sim)["odd"], sim.server.gate_open) == ("failed", False)
    (repository / "odd").rename(repository / ".away")
    sim.advance(6.0)
    assert (states(sim)["odd"], sim.server.gate_open) == ("unloaded", True)
    (repository / ".away").rename(repository / "odd")
    sim.advance(6.0)
    assert states(sim)["odd"] == "failed"
    assert sim.server.gate_open  # a serving model is not removed
