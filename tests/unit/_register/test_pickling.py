"""What `register` sends to a worker: every kind of callable, and what cannot be sent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest
from support.forks.prefork import Forking

from pytriton._protocol import messages
from pytriton._protocol.payload import Header, pack, unpack
from pytriton._register.environment import WorkerModules, capture_environment
from pytriton._register.pickling import pack_callable
from pytriton.decorators import batch
from pytriton.exceptions import PicklingError
from pytriton.worker.callables import LoadError, load_object

#: A registrant: creates `target`, registers nothing, writes what would be sent.
PRELUDE = """
import asyncio, functools, importlib.util, json, sys, threading, types
from pathlib import Path
from pytriton._protocol import messages
from pytriton._register.message import plan

def send(target, out, **options):
    planned = plan(target, "m", [], [OUT], None, options)
    Path(out).write_bytes(planned.payloads()[0])
    Path(out + ".world").write_bytes(messages.encode(planned.message))

import numpy as np
from pytriton.model_config import Tensor
OUT = Tensor(name="y", dtype=np.float32, shape=(1,))
"""

#: The loading part of a worker: another process with the captured interpreter, path and folder.
WORKER = """
import asyncio, inspect, json, sys
sys.path[:] = json.loads(sys.argv[2]) or sys.path
from pytriton._protocol.payload import unpack
from pytriton.worker.memory_modules import establish, load_payload
payload = open(sys.argv[1], "rb").read()
header = unpack(payload)[0]
establish(payload)
loaded = load_payload(payload)
if inspect.isclass(loaded) or sys.argv[3] == "factory":
    loaded = loaded()
result = loaded(20)
if inspect.iscoroutine(result):
    result = asyncio.run(result)
print(json.dumps([result, header.by_reference]))
"""


def run_python(*args: str, cwd: Path) -> None:
    """Run an interpreter, for behavior that depends on how it is started."""
    done = subprocess.run(
        [sys.executable, *args], cwd=cwd, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def run_script(forking: Forking, code: str, cwd: Path) -> None:
    """Run a script in a fork."""
    (cwd / "script.py").write_text(code)
    done = forking.run_script(Path("script.py"), [], cwd, os.environ)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def forking() -> Iterator[Forking]:
    """Runs registrants and workers, with the modules that both can import preloaded."""
    forking = Forking("numpy", "cloudpickle", "pytriton._register.message")
    yield forking
    forking.close()


def load_elsewhere(out: Path, *, factory: bool = False, forking: Forking) -> tuple[Any, bool]:
    """Load what a registrant has written and call it with 20, in a fork with the worker's folder and variables."""
    register = messages.decode(Path(f"{out}.world").read_bytes())
    assert isinstance(register, messages.Register)
    world = register.spec.world
    assert world.python == sys.executable
    arguments = [str(out), json.dumps(world.sys_path), "factory" * factory]
    (out.parent / "of-worker").mkdir(
        exist_ok=True
    )  # its first place to import from: nothing is there
    worker = out.parent / "of-worker" / "worker.py"
    worker.write_text(WORKER)
    done = forking.run_script(worker, arguments, Path(world.cwd), world.env)
    assert done.returncode == 0, done.stderr
    result, by_reference = json.loads(done.stdout.splitlines()[-1])
    return result, by_reference


KINDS = {
    "function": "def target(x): return 2 * x + 2",
    "function that uses globals": "TWO = 2\ndef half(x): return TWO * x\ndef target(x): return half(x) + TWO",
    "lambda": "target = lambda x: 2 * x + 2",
    "closure": "def make(k):\n    def infer(x): return k * x + k\n    return infer\ntarget = make(2)",
    "bound method": "class A:\n    k = 2\n    def infer(self, x): return self.k * x + 2\ntarget = A().infer",
    "callable object": "class A:\n    def __init__(self, k): self.k = k\n"
    "    def __call__(self, x): return self.k * x + 2\ntarget = A(2)",
    "class": "class target:\n    def __init__(self): self.k = 2\n"
    "    def __call__(self, x): return self.k * x + 2",
    "coroutine function": "async def target(x):\n    await asyncio.sleep(0)\n    return 2 * x + 2",
    "partial": "def infer(k, x): return k * x + 2\ntarget = functools.partial(infer, 2)",
    "uses a library": "def target(x): return int(np.add(2 * x, 2))",
    "recursive": "def target(x, n=2): return x + 2 if n == 1 else x + target(x, n - 1)",
    "made in a module of run time": "m = types.ModuleType('made_here')\nsys.modules['made_here'] = m\n"
    "exec('K = 2\\nclass Base:\\n    k = K\\nclass A(Base):\\n"
    "    def __call__(self, x): return self.k * x + K', m.__dict__)\ntarget = m.A()",
    "uses a module of run time": "m = types.ModuleType('made_here')\nsys.modules['made_here'] = m\n"
    "exec('K = 2\\ndef double(x): return K * x', m.__dict__)\ndef target(x): return m.double(x) + 2",
    "from a file that is on no path": "Path('elsewhere').mkdir(exist_ok=True)\n"
    "Path('elsewhere/odd.py').write_text('def target(x): return 2 * x + 2')\n"
    "spec = importlib.util.spec_from_file_location('odd', 'elsewhere/odd.py')\n"
    "odd = importlib.util.module_from_spec(spec); sys.modules['odd'] = odd\n"
    "spec.loader.exec_module(odd)\ntarget = odd.target",
    "hidden by another file of its name": "Path('elsewhere').mkdir(exist_ok=True)\n"
    "Path('elsewhere/twin.py').write_text('def target(x): return 2 * x + 2')\n"
    "Path('twin.py').write_text('def target(x): return -1')\n"
    "sys.path.insert(0, 'elsewhere'); import twin; del sys.path[0]\ntarget = twin.target",
    "namespace package": "Path('space').mkdir(exist_ok=True)\n"
    "Path('space/part.py').write_text('def target(x): return 2 * x + 2')\n"
    "import space.part\ndef target(x): return space.part.target(x)",
}  # fmt: skip


#: How Python was started makes no difference to the rest.
_ANY_START = ("function", "closure", "class", "namespace package")


@pytest.mark.programs
@pytest.mark.parametrize(
    ("kind", "how"),
    [(kind, "script") for kind in KINDS]
    + [(kind, how) for kind in _ANY_START for how in ("-c", "interactive")],
)
def test_a_callable_of_main_runs_elsewhere(
    kind: str, how: str, forking: Forking, tmp_path: Path
) -> None:
    code = f"{PRELUDE}\n{KINDS[kind]}\nsend(target, 'out')\n"
    if how == "script":
        run_script(forking, code, tmp_path)
    elif how == "-c":
        run_python("-c", code, cwd=tmp_path)
    else:  # the prompt reads one statement after the other; exec() keeps them in __main__
        session = f"exec({code!r})\n"
        done = subprocess.run(
            [sys.executable, "-i"], input=session, cwd=tmp_path, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert (tmp_path / "out").exists(), done.stderr
    assert load_elsewhere(tmp_path / "out", forking=forking) == (42, False)


@pytest.mark.programs
@pytest.mark.parametrize(
    "place", ["beside the script", "package", "package run with -m", "sys.path at run time"]
)
def test_importable_objects_are_pickled_by_name(
    place: str, forking: Forking, tmp_path: Path
) -> None:
    source = "K = 2\ndef target(x): return K * x + 2\n"
    if place == "beside the script":
        (tmp_path / "beside.py").write_text(source)
        code = "from beside import target"
    elif place == "sys.path at run time":
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib" / "beside.py").write_text(source)
        code = "sys.path.append('lib')\nfrom beside import target"
    else:
        (tmp_path / "pkg").mkdir()
        (tmp_path / "pkg" / "__init__.py").touch()
        (tmp_path / "pkg" / "mod.py").write_text(source)
        inside = "." if place == "package run with -m" else "pkg."
        code = f"from {inside}mod import target"
    code = f"{PRELUDE}\n{code}\nsend(target, 'out')\n"
    if place == "package run with -m":
        (tmp_path / "pkg" / "start.py").write_text(code)
        run_python("-m", "pkg.start", cwd=tmp_path)
    else:
        run_script(forking, code, tmp_path)
    assert load_elsewhere(tmp_path / "out", forking=forking) == (42, True)


@pytest.mark.programs
def test_modules_can_be_imported_from_a_zipapp(forking: Forking, tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("inside.py", "def target(x): return 2 * x + 2\n")
        archive.writestr(
            "__main__.py", f"{PRELUDE}\nfrom inside import target\nsend(target, 'out')"
        )
    run_python("app.pyz", cwd=tmp_path)
    assert load_elsewhere(tmp_path / "out", forking=forking) == (42, True)


@pytest.mark.programs
def test_a_factory_creates_the_callable_in_the_worker(forking: Forking, tmp_path: Path) -> None:
    code = (
        "def target():\n    lock = threading.Lock()\n"
        "    def infer(x):\n        with lock: return 2 * x + 2\n    return infer"
    )
    run_script(forking, f"{PRELUDE}\n{code}\nsend(target, 'out', factory=True)\n", tmp_path)
    assert load_elsewhere(tmp_path / "out", factory=True, forking=forking) == (42, False)


@pytest.mark.programs
def test_another_interpreter_gets_local_modules_by_value(forking: Forking, tmp_path: Path) -> None:
    """Its path lacks the script's folder; sys_path= prepends folders."""
    (tmp_path / "beside.py").write_text("K = 2\ndef target(x): return K * x + 2\n")
    code = (
        f"{PRELUDE}\nfrom beside import target\n"
        "send(target, 'value', python=sys.executable)\n"
        "send(target, 'name', python=sys.executable, sys_path=['.'])\n"
    )
    run_script(forking, code, tmp_path)
    assert load_elsewhere(tmp_path / "value", forking=forking) == (42, False)
    assert load_elsewhere(tmp_path / "name", forking=forking) == (42, True)


def test_modules_are_pickled_by_value_only_during_a_registration(
    forking: Forking, tmp_path: Path
) -> None:
    code = (
        f"{PRELUDE}\nimport cloudpickle\n{KINDS['made in a module of run time']}\n"
        "send(target, 'out')\nassert not cloudpickle.list_registry_pickle_by_value()\n"
        "cloudpickle.register_pickle_by_value(m)\nsend(target, 'out')\n"
        "assert cloudpickle.list_registry_pickle_by_value() == {'made_here'}\n"
    )
    run_script(forking, code, tmp_path)
    assert not cloudpickle.list_registry_pickle_by_value()


# ── what cannot be pickled ───────────────────────────────────────────────────────────────────────


class _Engine:
    def __init__(self) -> None:
        self.name = "fine"
        self.session = threading.Lock()

    def infer(self, requests: Any) -> Any:
        return requests

    def __call__(self, requests: Any) -> Any:
        return requests


class _Careful(_Engine):
    """Omits its lock when pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = {"deep": [1, _Engine()]}

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "inner": self.inner}


def _closure() -> Callable[..., Any]:
    lock, engine = threading.Lock(), "harmless"

    def predict(requests: Any) -> Any:
        return lock, engine, requests

    return predict


def _default() -> Callable[..., Any]:
    def predict(requests: Any, lock: Any = threading.Lock()) -> Any:  # noqa: B008
        return lock, requests

    return predict


def _with_global() -> Callable[..., Any]:
    space: dict[str, Any] = {"LOCK": threading.Lock(), "other": threading.Lock()}
    exec("def predict(requests):\n    return [LOCK for _ in requests.other]", space)
    made: Callable[..., Any] = space["predict"]
    return made


def _attribute() -> Callable[..., Any]:
    def predict(requests: Any) -> Any:
        return requests

    predict.cache = threading.Lock()  # type: ignore[attr-defined]
    return predict


def _class() -> Callable[..., Any]:
    class Predictor:
        lock = threading.Lock()

        def __call__(self, requests: Any) -> Any:
            return requests

    return Predictor


def _decorated() -> Callable[..., Any]:
    lock = threading.Lock()

    @batch
    def predict(x: Any) -> Any:
        return lock, x

    return predict


OFFENDERS: dict[str, tuple[Callable[[], Callable[..., Any]], str]] = {
    "closure variable": (
        _closure, r"closure variable `lock` of function predict at test_pickling\.py:\d+ \(a _thread\.lock\)",
    ),
    "a decorated function's": (
        _decorated, r"^Cannot pickle function predict at test_pickling\.py:\d+: closure variable `lock` of function "
        r"predict at test_pickling\.py:\d+ \(a _thread\.lock\)",
    ),
    "default": (_default, r"default of parameter `lock` of function predict at test_pickling"),
    "global": (_with_global, r"global variable `LOCK` of function predict at <string>:1 \(a _thread\.lock\)"),
    "attribute of a function": (_attribute, r"attribute `cache` of function predict at"),
    "attribute of an object": (_Engine, r"attribute `session` of object \(a .*_Engine\) \(a _thread\.lock\)"),
    "method's object": (lambda: _Engine().infer, r"attribute `session` of the object of method _Engine\.infer"),
    "class attribute": (_class, r"class attribute `lock` of class .*Predictor \(a _thread\.lock\)"),
    "deep, not what __getstate__ leaves out": (
        _Careful, r"attribute `session` of item 1 of item `deep` of attribute `inner` of object",
    ),
    "argument of a partial": (
        lambda: __import__("functools").partial(_Engine.infer, threading.Lock()),
        r"argument 0 of functools\.partial of function infer",
    ),
}  # fmt: skip


def packed(target: Callable[..., Any]) -> bytes:
    with closing(WorkerModules(capture_environment(), own_interpreter=True)) as imports:
        return pack_callable(target, imports, "m")


@pytest.mark.parametrize("kind", OFFENDERS)
def test_an_unpicklable_object_is_named_with_remedies(kind: str) -> None:
    make, words = OFFENDERS[kind]
    with pytest.raises(PicklingError, match=words) as caught:
        packed(make())
    assert "factory=True" in str(caught.value)
    assert caught.value.model_name == "m"
    assert "lock" in str(caught.value.__cause__)


def test_msgspec_constraints_in_annotations_are_sent() -> None:
    meta = msgspec.Meta(ge=1, title="a", extra_json_schema={"x": [1]})
    _, pickled = unpack(packed(lambda x=meta: x))
    assert cloudpickle.loads(pickled)() == meta


def test_an_open_file_is_refused_like_a_lock(tmp_path: Path) -> None:
    """cloudpickle would send a copy of its contents."""
    (tmp_path / "words").write_text("a b")
    with open(tmp_path / "words", encoding="utf-8") as words:
        with pytest.raises(PicklingError, match=r"`words` .*TextIOWrapper.*open it in the worker"):
            packed(lambda requests: words.read())
        packed(lambda requests: print(requests, file=sys.stderr))


@pytest.mark.programs
def test_the_error_names_modules_that_another_python_lacks(
    forking: Forking, tmp_path: Path
) -> None:
    """A module next to the script is sent by value to an interpreter that lacks it; sys_path= is the fix."""
    (tmp_path / "helping").mkdir()
    (tmp_path / "helping" / "__init__.py").touch()
    (tmp_path / "helping" / "target.py").write_text("def target(x): return x\n")
    code = f"{PRELUDE}\nfrom helping.target import target\nsend(target, 'out', python=sys.executable)\n"
    run_script(forking, code, tmp_path)
    header, pickled = unpack((tmp_path / "out").read_bytes())
    other = pack(msgspec.structs.replace(header, python_version=(3, 8)), bytes(pickled))
    spec = messages.ModelSpec("m", 1, {}, messages.WorkerEnvironment("python"))
    with pytest.raises(LoadError) as caught:
        load_object(other, spec)
    assert f"register(..., sys_path=['{tmp_path}'])" in str(caught.value)
    without = pack(Header((3, 8), by_reference=False), bytes(pickled))
    with pytest.raises(LoadError, match=r"of the version that pickled it\.$"):
        load_object(without, spec)
