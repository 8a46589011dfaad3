"""The interpreter of a worker's world is asked once which modules it does not find."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from pytriton._protocol.messages import WorkerEnvironment
from pytriton._register import worker_modules
from pytriton._register.environment import capture_environment
from pytriton._register.worker_modules import WorkerModules

MADE = ModuleType("made_just_now")


class FakeProbe:
    """An interpreter that finds what the test says, and remembers what it was asked."""

    asked: list[str]
    found: dict[str, str]

    def __init__(self, world: WorkerEnvironment) -> None:
        pass

    def look_up(self, module: str) -> tuple[bool, str | None]:
        self.asked.append(module)
        return module in self.found, self.found.get(module)

    def close(self) -> None:
        pass


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> type[FakeProbe]:
    FakeProbe.asked, FakeProbe.found = [], {}
    monkeypatch.setattr(worker_modules, "Probe", FakeProbe)
    monkeypatch.setattr(worker_modules, "_last_query", None)
    return FakeProbe


def finds(module: ModuleType, world: WorkerEnvironment, *, own_interpreter: bool = True) -> bool:
    with WorkerModules(world, own_interpreter=own_interpreter) as imports:
        return imports.finds(module)


def test_missing_modules_are_cached_per_environment(probe: type[FakeProbe]) -> None:
    assert not finds(MADE, capture_environment())
    assert not finds(MADE, capture_environment())
    assert probe.asked == ["made_just_now"]
    other = msgspec.structs.replace(capture_environment(), env={"SOME": "thing"})
    assert not finds(MADE, other)
    assert len(probe.asked) == 2


def test_found_modules_are_looked_up_again(probe: type[FakeProbe]) -> None:
    """Who changes an editable install, or takes it away, must not get an old answer."""
    module = ModuleType("hooked")
    module.__file__ = probe.found["hooked"] = "/src/hooked.py"
    assert finds(module, capture_environment())
    probe.found["hooked"] = "/elsewhere/hooked.py"
    assert not finds(module, capture_environment())
    probe.found.clear()
    assert not finds(module, capture_environment())
    assert len(probe.asked) == 3


def test_another_interpreter_is_queried_again(probe: type[FakeProbe]) -> None:
    """What it lacks, somebody installs, and registers once more."""
    world, module = WorkerEnvironment("/env/bin/python"), ModuleType("fast")
    module.__file__ = "/src/fast.so"
    assert not finds(module, world, own_interpreter=False)
    probe.found["fast"] = "/src/fast.so"
    assert finds(module, world, own_interpreter=False)


def test_a_module_added_to_the_search_path_later_is_found(
    probe: type[FakeProbe], tmp_path: Path
) -> None:
    module = ModuleType("comes_later")
    module.__file__ = str(tmp_path / "comes_later.py")
    world = WorkerEnvironment(sys.executable, [str(tmp_path)])
    assert not finds(module, world)
    Path(module.__file__).touch()
    assert finds(module, world)
