"""The environment of a callable: interpreter, module search path, working directory, variables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from pytriton._protocol.messages import WorkerEnvironment
from pytriton._register import environment
from pytriton._register.environment import (
    Probe,
    WorkerModules,
    capture_environment,
    find_interpreter,
)
from pytriton.exceptions import PyTritonBadParameterError

SHOW = (
    "import json\nfrom pytriton._register.environment import capture_environment\nw = capture_environment()\n"
    "print(json.dumps([w.python, w.sys_path, w.cwd]))\n"
)


def shown(*args: str, cwd: Path, code: str | None = None) -> tuple[str, list[str], str]:
    done = subprocess.run(
        [sys.executable, *args], cwd=cwd, input=code, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    python, path, folder = json.loads(done.stdout.splitlines()[-1])
    return python, path, folder


def test_a_scripts_folder_comes_first(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "script.py").write_text(SHOW)
    python, path, folder = shown("sub/script.py", cwd=tmp_path)
    assert python == sys.executable
    assert path[0] == str(tmp_path / "sub")
    assert folder == str(tmp_path)


@pytest.mark.parametrize("how", ["-c", "standard input", "-m"])
def test_the_working_directory_replaces_the_empty_entry(how: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SHOW)
    args, code = {
        "-c": (("-c", SHOW), None),
        "standard input": (("-",), SHOW),
        "-m": (("-m", "script"), None),
    }[how]
    _, path, _ = shown(*args, cwd=tmp_path, code=code)
    assert path[0] == str(tmp_path)


def test_entries_are_absolute_and_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lib").mkdir()
    odd = [b"lib", "", "gone", "lib/../lib", str(tmp_path / "lib"), 3]
    monkeypatch.setattr(sys, "path", [*odd, *sys.path])
    path = capture_environment().sys_path
    assert path[:2] == [str(tmp_path / "lib"), str(tmp_path)]
    assert len(set(path)) == len(path)
    assert all(os.path.isabs(entry) and os.path.exists(entry) for entry in path)


def test_explicit_paths_precede_the_process_s_path(tmp_path: Path) -> None:
    path = capture_environment(sys_path=[tmp_path]).sys_path
    assert path[0] == str(tmp_path)
    assert path[1:] == capture_environment().sys_path


def test_another_interpreter_uses_its_own_path(tmp_path: Path) -> None:
    assert capture_environment(python=sys.executable).sys_path == []
    path = capture_environment(python=sys.executable, sys_path=[tmp_path]).sys_path
    assert path[0] == str(tmp_path)
    assert os.path.dirname(os.__file__) in path, "the standard library is still found"


def test_an_interpreter_may_be_a_file_a_name_or_an_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "env" / "bin").mkdir(parents=True)
    python = tmp_path / "env" / "bin" / "python"
    python.symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    assert find_interpreter("env") == str(python), (
        "the link itself: it is what makes an environment"
    )
    assert find_interpreter(python) == str(python)
    monkeypatch.setenv("PATH", str(tmp_path / "env" / "bin"))
    assert find_interpreter("python") == str(python)


def test_an_invalid_interpreter_is_named(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    with pytest.raises(PyTritonBadParameterError, match="folder without bin/python"):
        find_interpreter(tmp_path)
    with pytest.raises(PyTritonBadParameterError, match=r"/gone does not exist"):
        find_interpreter(tmp_path / "gone")
    with pytest.raises(PyTritonBadParameterError, match=r"python='no-such-python'"):
        find_interpreter("no-such-python")
    if os.geteuid() != 0 or not os.access(plain, os.X_OK):
        with pytest.raises(PyTritonBadParameterError, match="cannot be executed"):
            find_interpreter(plain)
    with pytest.raises(PyTritonBadParameterError, match="not work as a worker"):
        capture_environment(python="/bin/true", sys_path=[tmp_path])


def test_a_frozen_program_cannot_start_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(PyTritonBadParameterError, match=r"frozen.*python="):
        capture_environment()
    assert capture_environment(python=sys.executable).python == sys.executable


def test_a_deleted_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(PyTritonBadParameterError, match=r"has been deleted.*cwd="):
        capture_environment()
    assert capture_environment(cwd=tmp_path).cwd == str(tmp_path)
    with pytest.raises(PyTritonBadParameterError, match=r"the folder .* does not exist"):
        capture_environment(cwd="/no/such/folder")


def test_this_interpreters_variables_are_not_forwarded_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setenv("MY_SETTING", "1")
    assert capture_environment().env["PYTHONHASHSEED"] == "0"
    assert capture_environment(python=sys.executable).env["PYTHONHASHSEED"] == "0"
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    world = capture_environment(python=other)
    assert "PYTHONHASHSEED" not in world.env
    assert "PYTHONHASHSEED" in world.stayed
    assert world.env["MY_SETTING"] == "1"


def test_variables_are_set_copied_and_omitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("HF_HOME", "here")
    assert "HF_TOKEN" not in capture_environment().env
    assert capture_environment(env=["HF_TOKEN"]).env["HF_TOKEN"] == "secret"
    assert "HF_TOKEN" in capture_environment().stayed
    world = capture_environment(env={"A": "1", "HF_HOME": None, "HF_TOKEN": None})
    assert world.env["A"] == "1"
    assert "HF_HOME" not in world.env
    assert not {"HF_HOME", "HF_TOKEN"}.intersection(world.stayed), "its owner knows"


@pytest.mark.parametrize(
    ("env", "words"),
    [("PATH", "dict of variables"), (["NO_SUCH_VARIABLE"], "not set in this process"), ({"A": 1}, "value of A"),
     ({"A=B": "1"}, "not a valid variable name"), ({"A": "\0"}, "without NUL"), (3, "dict of variables")],
)  # fmt: skip
def test_an_invalid_environment_is_named(env: object, words: str) -> None:
    with pytest.raises(PyTritonBadParameterError, match=words):
        capture_environment(env=env)  # type: ignore[arg-type]


# ── what the worker could import ─────────────────────────────────────────────────────────────────


def test_installed_modules_are_found(tmp_path: Path) -> None:
    import email.mime.text
    import json.decoder

    import cloudpickle
    import msgspec
    import rich.console

    import pytriton._protocol.lanes.lane

    modules = (
        email.mime.text,
        json.decoder,
        cloudpickle,
        msgspec,
        pytriton._protocol.lanes.lane,
        rich.console,
        sys,
        os,
    )
    for python in (None, sys.executable):
        world = capture_environment(python=python)
        with closing(WorkerModules(world, own_interpreter=python is None)) as imports:
            assert [module.__name__ for module in modules if not imports.finds(module)] == []


def test_a_module_created_at_run_time_is_not_found() -> None:
    with closing(WorkerModules(capture_environment(), own_interpreter=True)) as imports:
        assert not imports.finds(ModuleType("made_just_now"))
        assert not imports.finds(ModuleType("json.made_just_now"))
        assert not imports.finds(sys.modules["__main__"])


def test_a_module_behind_an_import_hook_is_found(tmp_path: Path) -> None:
    """As in an editable install: a .pth file installs a finder, and no folder with the module is on the path."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True
    )
    site = next((tmp_path / "env" / "lib").glob("python*/site-packages"))
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "hooked.py").write_text("print('noise')\nX = 1\n")
    (site / "hook.pth").write_text("import hook_finder\n")
    (site / "hook_finder.py").write_text(
        "import sys, importlib.util as u\n"
        "class F:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        return u.spec_from_file_location(name, {str(tmp_path / 'src' / 'hooked.py')!r}) "
        "if name == 'hooked' else None\n"
        "sys.meta_path.append(F)\n"
    )
    world = WorkerEnvironment(str(tmp_path / "env" / "bin" / "python"), [], str(tmp_path), {})
    module = ModuleType("hooked")
    module.__file__ = str(tmp_path / "src" / "hooked.py")
    with closing(Probe(world)) as probe:
        path = probe.search_path
        assert probe.look_up("hooked") == (True, module.__file__)
        assert probe.look_up("surely_not_there") == (False, None)
        assert probe.look_up("json.not_there_either") == (False, None)
    with closing(
        WorkerModules(WorkerEnvironment(world.python, path, world.cwd, {}), own_interpreter=True)
    ) as imports:
        assert imports.finds(module)
        module.__file__ = str(tmp_path / "another.py")
    with closing(
        WorkerModules(WorkerEnvironment(world.python, path, world.cwd, {}), own_interpreter=True)
    ) as imports:
        assert not imports.finds(module)


def test_a_closed_probe_has_exited() -> None:
    with closing(Probe(capture_environment())) as probe:
        process = probe._process
    assert process.returncode is not None


# ── the modules that an interpreter does not find are asked for once ───────────────────────────────

MADE = ModuleType("made_just_now")


class FakeProbe:
    """A probed interpreter with scripted results that records its queries."""

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
    monkeypatch.setattr(environment, "Probe", FakeProbe)
    monkeypatch.setattr(environment, "_last_query", None)
    return FakeProbe


def finds(module: ModuleType, world: WorkerEnvironment, *, own_interpreter: bool = True) -> bool:
    with closing(WorkerModules(world, own_interpreter=own_interpreter)) as imports:
        return imports.finds(module)


def test_missing_modules_are_cached_per_environment(probe: type[FakeProbe]) -> None:
    assert not finds(MADE, capture_environment())
    assert not finds(MADE, capture_environment())
    assert probe.asked == ["made_just_now"]
    other = msgspec.structs.replace(capture_environment(), env={"SOME": "thing"})
    assert not finds(MADE, other)
    assert len(probe.asked) == 2


def test_found_modules_are_looked_up_again(probe: type[FakeProbe]) -> None:
    """After changing or removing an editable install, users must not get an old answer."""
    module = ModuleType("hooked")
    module.__file__ = probe.found["hooked"] = "/src/hooked.py"
    assert finds(module, capture_environment())
    probe.found["hooked"] = "/elsewhere/hooked.py"
    assert not finds(module, capture_environment())
    probe.found.clear()
    assert not finds(module, capture_environment())
    assert len(probe.asked) == 3


def test_another_interpreter_is_queried_again(probe: type[FakeProbe]) -> None:
    """Users install missing modules there, and register again."""
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
