"""Modules that exist only in a worker's memory: their contents, when they are loaded, and errors about missing names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from support.forks.prefork import Forking

from pytriton._protocol.payload import pack, unpack
from pytriton._register.pickling import MAX_DEFINITION_BYTES

REGISTRANT = """
import sys, types
from contextlib import closing
from pathlib import Path
from pytriton._register.pickling import pack_callable
from pytriton._register.environment import WorkerModules, capture_environment

def send(target, out, **options):
    with closing(WorkerModules(capture_environment(), own_interpreter=True)) as imports:
        Path(out).write_bytes(pack_callable(target, imports, "m", **options))
"""
#: Sets `main`, `target`, and `payload` and `load` for more.
WORKER = """
import pickle, sys
from pathlib import Path
from pytriton.worker.memory_modules import establish, load_payload
payload = Path("target").read_bytes()
establish(payload)
target = load_payload(payload)
main = sys.modules["__main__"]
load = lambda name: load_payload(Path(name).read_bytes())
def said(call):
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""


Run = Callable[[str, str], "list[str]"]


@pytest.fixture(scope="module")
def forking() -> Iterator[Forking]:
    forking = Forking("numpy", "cloudpickle", "pytriton._register.message")
    yield forking
    forking.close()


@pytest.fixture
def run(forking: Forking, tmp_path: Path) -> Run:
    """Return a function that runs a registrant and then a worker, and returns the worker's output."""

    def script(name: str, code: str) -> list[str]:
        (tmp_path / name).write_text(code)
        done = forking.run_script(tmp_path / name, [], tmp_path, os.environ)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def both(registrant: str, worker: str) -> list[str]:
        script("script.py", REGISTRANT + registrant)
        return script("worker.py", WORKER + worker)

    return both


def test_names_used_by_a_callable_are_in_its_module(run: Run) -> None:
    """Ordinary pickles refer to them there: they must be the objects that the callable has."""
    registrant = """
class Engine:
    class Part: pass
    def __call__(self): return half
def half(): return COUNT
COUNT = 3
send(Engine(), "target")
"""
    worker = """
half = target()
print(main.half is half, pickle.loads(pickle.dumps(half)) is half, main.COUNT)
print(type(pickle.loads(pickle.dumps(target))) is type(target) is main.Engine)
print(type(pickle.loads(pickle.dumps(main.Engine.Part()))) is main.Engine.Part)
print(main.__name__, main.__file__.rpartition("/")[2], "Engine" in vars(main))
"""
    assert run(registrant, worker) == ["True True 3", "True", "True", "__main__ script.py True"]


def test_other_definitions_are_loaded_on_first_use(run: Run, tmp_path: Path) -> None:
    """With everything that they use, in any order, even if unused imports of the module are missing."""
    registrant = """
sys.modules["not_there"] = not_there = types.ModuleType("not_there")
not_there.__file__ = "/not/there.py"
class Base:
    def twice(self): return 2 * even(4)
class Model(Base):
    def shown(self): return not_there
    def __reduce__(self): return (Model, ())
def even(n): return n == 0 or odd(n - 1)
def odd(n): return n != 0 and even(n - 1)
def target(): pass
send(target, "target")
"""
    worker = """
print("Model" in vars(main), "even" in vars(main))
model = pickle.loads(b"c__main__\\nModel\\n.")()
print(model.twice(), type(model) is main.Model, main.Model.__bases__ == (main.Base,), "odd" in vars(main))
print(said(lambda: main.nothing), hasattr(main, "__path__"))
"""
    assert run(registrant, worker) == [
        "False False",
        "2 True True True",
        "AttributeError: module '__main__' has no attribute 'nothing' (of "
        f"{tmp_path / 'script.py'}, as registered) False",
    ]


def test_unused_secrets_and_large_values_are_not_sent(run: Run, tmp_path: Path) -> None:
    registrant = f"""
import threading
api_key = "sk-very-secret"
large = b"12345678" * {MAX_DEFINITION_BYTES // 8}
lock = threading.Lock()
def uses_all(): return api_key, large, lock
class Large: content = large
def target(): pass
send(target, "target")
"""
    worker = """
for name in ("api_key", "large", "lock", "Large"):
    print(said(lambda: getattr(main, name)))
print(callable(main.uses_all))
"""
    lines = run(registrant, worker)
    assert "it looks like a secret, and the callable does not use it" in lines[0]
    assert "large" in lines[1]
    assert "was not sent to the worker (over 256 KiB" in lines[1]
    assert "cannot pickle '_thread.lock' object" in lines[2]
    assert "over 256 KiB" in lines[3]
    assert "Move it to a module next to the script" in lines[3]
    assert lines[-1] == "True", "what uses them is there"
    payload = (tmp_path / "target").read_bytes()
    assert b"very-secret" not in payload
    assert len(payload) < MAX_DEFINITION_BYTES


def test_all_names_used_by_the_callable_are_sent(run: Run) -> None:
    registrant = f"""
api_key = "sk-very-secret"
large = b"12345678" * {MAX_DEFINITION_BYTES // 8}
def target(): return api_key, len(large)
send(target, "target")
"""
    assert run(registrant, "print(target(), main.api_key)") == [
        f"('sk-very-secret', {MAX_DEFINITION_BYTES}) sk-very-secret"
    ]


def test_errors_about_another_pythons_definitions_say_so(run: Run, tmp_path: Path) -> None:
    run("class Model: pass\nsend(print, 'target')", "")
    header, pickled = unpack((tmp_path / "target").read_bytes())
    assert header.by_reference
    other = msgspec.structs.replace(header, python_version=(3, 8))
    (tmp_path / "target").write_bytes(pack(other, bytes(pickled)))
    (lines,) = run("", "target('called'); print(said(lambda: main.Model))")[1:]
    assert "was sent as Python 3.8 code, but this is Python 3." in lines
    assert "Put it into a module that both can import" in lines


def test_a_check_does_not_replace_the_served_model(run: Run) -> None:
    registrant = """
def half(): return half
def target(): return half
def check(infer): return half
send(target, "target")
send(check, "check", is_check=True)
"""
    worker = """
check = load("check")
print(pickle.loads(pickle.dumps(target())) is target(), check(target) is not target())
"""
    assert run(registrant, worker) == ["True True"]


#: A module that no worker finds, with contents that only an import by name shows.
_ODD = """
odd = sys.modules["odd.part"] = types.ModuleType("odd.part")
exec("K = 3\\ndef half(): return K\\ndef unused(): return half() + K", vars(odd))
half = odd.half
"""


@pytest.mark.parametrize("way", ["a function of it", "the module"])
def test_modules_other_than_the_script_are_included(run: Run, way: str) -> None:
    """cloudpickle sends them by value only until somebody has imported them; loky's processes lack them."""
    what = "half()" if way == "a function of it" else "odd.half()"
    registrant = f"{_ODD}\ndef target(): return {what}\nsend(target, 'target')"
    used = (
        "target.__globals__['half']"
        if way == "a function of it"
        else "target.__globals__['odd'].half"
    )
    worker = f"""
import cloudpickle
half = {used}
print(target(), half.__module__, b"cloudpickle" in cloudpickle.dumps(half))
print(pickle.loads(pickle.dumps(half)) is half)
from odd.part import unused
print(unused())
"""
    assert run(registrant, worker) == ["3 odd.part True", "True", "6"]
