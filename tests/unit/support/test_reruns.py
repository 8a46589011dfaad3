"""A run survives tests that hang or kill their process; failed tests run again, alone, and are reported."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

TESTS = Path(__file__).parents[2]
pytestmark = pytest.mark.programs

_MAIN = """
import sys
sys.path[0] = {tests!r}
from support.suite import rerun
rerun._LEFT_S = 0.2
sys.exit(rerun.main(sys.argv[1:]))
"""
_CONFTEST = """
import os, sys
sys.path.insert(0, {tests!r})
pytest_plugins = [
    "xdist.plugin", "pytest_timeout", "support.suite.worker_recovery", "support.suite.preload", "support.suite.rerun",
]

def pytest_configure():
    __builtins__["first"] = first

def first(what):
    '''Whether it is asked for the first time.'''
    try:
        open(os.path.join({folder!r}, what), "x").close()
    except FileExistsError:
        return False
    return True
"""
_HARD = """
import ctypes, os, signal
import pytest

def test_before(): pass

def test_ends_its_process():
    if first("end"):
        os._exit(3)

def test_after(): pass
"""
_HANGS = """
import ctypes, signal
import pytest

@pytest.mark.timeout(5)
def test_hangs_where_no_signal_comes():
    if first("hang"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        ctypes.CDLL(None).pause()

def test_after(): pass
"""
_SOFT = """
import os, subprocess
import pytest

@pytest.fixture
def end():
    yield
    assert not first("fixture")

def test_whose_fixture_fails_in_the_end(end): pass

def test_unreliable():
    assert not first("unreliable")

@pytest.mark.parametrize("word", ["a::b [c]", "d"])
def test_with_a_name(word):
    assert not first("named " + word)

def test_that_leaves_a_process_behind():
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    with open(os.environ["LEFT"], "w") as file:
        file.write(str(process.pid))
    process.returncode = 0
"""
_BROKEN = """
def test_that_fails(): assert False, "as ever"
"""


def run(folder: Path, **files: str) -> subprocess.CompletedProcess[str]:
    """Run these tests in two processes, as scripts/test does in CI."""
    text = _CONFTEST.format(tests=str(TESTS), folder=str(folder))
    (folder / "conftest.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\ntimeout = 60\nends_after = 1\n")
    for name, content in files.items():
        (folder / f"test_{name}.py").write_text(content)
    options = ["-n2", "--dist=loadfile", "--no-loadscope-reorder"]
    variables = {"LEFT": str(folder / "left"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [sys.executable, "-c", _MAIN.format(tests=str(TESTS)), *options, str(folder)],
        cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def named(said: str, heading: str) -> set[str]:
    """Return the tests listed below a heading of the report."""
    found = re.search(rf"^\[test\] {heading}.*\n((?:  .*\n)*)", said, re.MULTILINE)
    return {line.strip() for line in found.group(1).splitlines()} if found else set()


UNRELIABLE = {
    "test_soft.py::test_whose_fixture_fails_in_the_end",
    "test_soft.py::test_unreliable",
    *(f"test_soft.py::test_with_a_name[{word}]" for word in ("a::b [c]", "d")),
}


def test_a_test_that_passes_alone_is_unreliable_but_not_a_failure(tmp_path: Path) -> None:
    done = run(tmp_path, soft=_SOFT)
    assert done.returncode == 0, done.stdout
    assert named(done.stdout, "UNRELIABLE") == UNRELIABLE
    assert "FAILED twice" not in done.stdout
    assert re.search(r"\b3 failed, 2 passed, 1 error\b", done.stdout), done.stdout
    assert "sleep 1000" in done.stdout
    assert not psutil.pid_exists(int((tmp_path / "left").read_text()))


def test_a_crashing_process_affects_no_other_test(tmp_path: Path) -> None:
    """While there are others, a test that killed its process is not run again."""
    hard = {f"hard_{letter}": _HARD.replace('"end"', f'"end {letter}"') for letter in "abc"}
    done = run(tmp_path, **hard, hangs=_HANGS, broken=_BROKEN)
    assert done.returncode == 1, done.stdout
    assert "INTERNALERROR" not in done.stdout
    assert re.search(r"\b5 failed, 7 passed\b", done.stdout), done.stdout
    assert named(done.stdout, "FAILED twice") == {"test_broken.py::test_that_fails"}
    assert named(done.stdout, "UNRELIABLE") == {
        *(f"test_{name}.py::test_ends_its_process" for name in hard),
        "test_hangs.py::test_hangs_where_no_signal_comes",
    }
    assert "as ever" in done.stdout.rpartition("each runs again")[2]
    assert "pause" in done.stderr or "test_hangs.py" in done.stderr  # where it hung


def test_if_not_all_have_run_nothing_is_rerun(tmp_path: Path) -> None:
    done = run(tmp_path, unreadable="1 / 0\n", soft="def test_fine(): pass\n")
    assert done.returncode != 0
    assert "not all tests have run; these failed, if any:\n  test_unreadable.py\n" in done.stdout
    assert "runs again" not in done.stdout


def test_a_run_without_tests_is_not_a_success(tmp_path: Path) -> None:
    done = run(tmp_path, fine="import pytest\n")
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
