"""Importing is cheap and has no side effects, and our names do not collide with a user's modules."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.programs

ROOT = Path(__file__).parents[2]
#: Slow to import, or needed only by some of our processes.
HEAVY = (
    "aiohttp", "asyncio", "cloudpickle", "concurrent", "filelock", "gevent", "grpc", "ml_dtypes",
    "msgspec", "multiprocessing", "numpy", "psutil", "rich", "structlog", "tritonclient", "typer",
    "virtualenv", "zmq",
)  # fmt: skip

#: Imports every module of ours and prints what that started.
IMPORT_ALL = """
import importlib, json, pkgutil, signal, sys, threading
import psutil, pytriton
handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
argv, failed, count = list(sys.argv), {}, 0
for found in pkgutil.walk_packages(pytriton.__path__, "pytriton."):
    if found.name.endswith(".__main__"):
        continue
    try:
        importlib.import_module(found.name)
        count += 1
    except ModuleNotFoundError as error:
        if error.name != "triton_python_backend_utils":  # exists in tritonserver's stub only
            raise
me = psutil.Process()
print(json.dumps({
    "count": count,
    "threads": [thread.name for thread in threading.enumerate()],
    "children": [child.name() for child in me.children(recursive=True)],
    "sockets": [str(one) for one in me.net_connections(kind="all")],
    "handlers": [int(n) for n in handlers if signal.getsignal(n) is not handlers[n]],
}))
"""


#: Runs each of these pieces of code in a fork, and prints its output and the modules imported.
APART = """
import json, os, sys, traceback
first, *codes = json.load(sys.stdin)
names = {"__name__": "apart"}
exec(first, names)
for code in codes:
    sys.stdout.flush()
    if os.fork() == 0:
        try:
            exec(code, names)
        except BaseException:
            print(traceback.format_exc())
        print(end=chr(0))
        print(*sys.modules, end=chr(0), flush=True)
        os._exit(0)
    os.wait()
"""


class Reported(NamedTuple):
    """The output of a piece of code, and the modules imported afterwards."""

    printed: str
    modules: set[str]


def run_apart(first: str, codes: Sequence[str], cwd: Path) -> dict[str, Reported]:
    """Run pieces of code after a common preamble, each without the others' imports."""
    done = subprocess.run(
        [sys.executable, "-c", APART],
        cwd=cwd, check=True, capture_output=True, text=True, input=json.dumps([first, *codes]),
    )  # fmt: skip
    parts = done.stdout.split("\0")
    assert len(parts) == 2 * len(codes) + 1, done.stderr
    return {
        code: Reported(printed, {*modules.split()})
        for code, printed, modules in zip(codes, parts[::2], parts[1::2])
    }


def run_python(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *args], cwd=cwd, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done


@functools.cache
def modules_after(code: str) -> set[str]:
    """Return the modules imported after `code` has run."""
    with tempfile.TemporaryDirectory() as cwd:
        done = run_python("-c", f"{code}\nimport sys; print(*sys.modules)", cwd=Path(cwd))
    return set(done.stdout.split())


#: Imports of tritonclient and aiohttp would take as long as half of a daemon's start.
TRITON_ADMIN = """
import asyncio
from pytriton._host.settings.declarations import DaemonConfig
from pytriton.dispatcher.server.frontends.triton_frontend import AdminClient
from pytriton.formats import pbtxt
async def connect(): AdminClient(DaemonConfig(), 1, 1)._connected()
asyncio.run(connect())
assert pbtxt.write({'name': 'm'}) == 'name: "m"\\n'
assert pbtxt.parse('name: "m"')['name'] == 'm'
"""
NATIVE_ADMIN = """
import asyncio, pathlib
from pytriton.dispatcher.server.frontend import Unreached
from pytriton.dispatcher.server.frontends.native_frontend import NativeAdmin
async def ask():
    futures = [asyncio.get_running_loop().create_future() for _ in 'ab']
    try: await NativeAdmin(pathlib.Path('none').absolute(), *futures).load('m', None)
    except Unreached: return 'asked'
assert asyncio.run(ask()) == 'asked'
"""
#: One process per model of a repository does that before its worker starts.
INSPECTION = """
import pathlib, sys
from pytriton._register.python_models import prepare_folder
pathlib.Path("m/1").mkdir(parents=True)
pathlib.Path("m/1/model.py").write_text("class TritonPythonModel: pass")
pathlib.Path("m/config.pbtxt").write_text(
    'backend: "python"\\noutput [ { name: "y" data_type: TYPE_FP32 dims: 1 } ]'
)
question = {
    "task": "python", "folder": str(pathlib.Path("m").absolute()), "name": "m", "config": None,
    "python": sys.executable, "requirements": None, "install": False, "env": {},
}
assert prepare_folder.answer(question)['spec']['name'] == 'm'
"""
#: typer builds parameters from what it is given, and would use pydantic to convert their values.
COMMAND = """
import sys; from pytriton._cli import main
sys.argv[1:] = ['status', '--json', '--runtime-dir', 'none']
try: main()
except SystemExit as end: assert end.code == 3, end.code  # no daemon is running
"""
PROTOCOLS = (
    "tritonclient.grpc", "tritonclient.grpc.aio", "tritonclient.http", "tritonclient.http.aio",
)  # fmt: skip


@pytest.mark.parametrize(
    ("code", "imported", "others"),
    [
        ("import pytriton", "pytriton", HEAVY),
        ("import pytriton.triton", "pytriton.triton.local", HEAVY),
        (
            "import pytriton; pytriton.client.ModelClient",
            "pytriton.client.model_client",
            ("aiohttp", "gevent", "grpc", *PROTOCOLS),
        ),
        (
            "import pytriton.worker.process",
            "pytriton.worker.loop",
            ("asyncio", "concurrent.futures", "importlib.metadata", "ssl"),
        ),
        (
            "import pytriton.dispatcher.process",
            "pytriton.dispatcher.daemon",
            ("filelock", "http.client", "importlib.metadata", "numpy", "psutil", "tomllib", "urllib.request"),
        ),
        (TRITON_ADMIN, "grpclib.client", ("tritonclient", "grpc", "numpy", "ml_dtypes", "aiohttp")),
        (
            NATIVE_ADMIN,
            "pytriton.dispatcher.server.frontends.native_frontend",
            ("aiohttp", "requests", "http.client", "tritonclient"),
        ),
        (
            INSPECTION,
            "google.protobuf.text_format",
            ("asyncio", "cloudpickle", "grpc", "numpy", "zmq", "tritonclient.grpc"),
        ),
        (COMMAND, "typer", ("importlib.metadata", "pydantic", "rich", "tomllib")),
    ],
    ids=[
        "pytriton", "Triton", "a client", "a worker", "a daemon", "tritonserver's frontend",
        "the native frontend", "the inspection of a model", "a command",
    ],
)  # fmt: skip
def test_nothing_slow_is_imported(code: str, imported: str, others: tuple[str, ...]) -> None:
    names = modules_after(code)
    assert imported in names
    assert sorted(names & {*others}) == []


def test_importing_pytriton_loads_no_submodule() -> None:
    names = modules_after("import pytriton")
    assert sorted(name for name in names if name.startswith("pytriton.")) == []


def test_a_worker_imports_only_what_every_callable_needs() -> None:
    """Some versions of numpy import these modules themselves."""
    needed = modules_after("import numpy, zmq, msgspec, cloudpickle")
    rare = {"difflib", "hmac", "importlib.resources", "tempfile"}
    assert sorted((modules_after("import pytriton.worker.process") - needed) & rare) == []


def test_a_command_imports_no_other_command() -> None:
    commands = {one for one in modules_after(COMMAND) if one.startswith("pytriton._cli.commands.")}
    assert commands == {"pytriton._cli.commands.status"}


def test_a_daemon_does_not_import_rich(tmp_path: Path) -> None:
    """structlog would, which takes as long as all of its other imports."""
    done = run_python("-X", "importtime", "-m", "pytriton.dispatcher", "--help", cwd=tmp_path)
    names = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert {"structlog", "pytriton.dispatcher.daemon"} <= names
    assert sorted(names & {"rich.console", "rich.pretty", "pygments"}) == []


def test_importing_every_module_starts_nothing(tmp_path: Path) -> None:
    left = json.loads(run_python("-c", IMPORT_ALL, cwd=tmp_path).stdout)
    assert left.pop("count") > 10
    assert left == {"threads": ["MainThread"], "children": [], "sockets": [], "handlers": []}


NAMES = ("DynamicBatcher", "ModelConfig", "QueuePolicy", "Tensor", "batch", "connect")


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reported]:
    """The outputs of programs that each use another public name first."""
    codes = [f"print(pytriton.{name}.__module__)" for name in NAMES]
    reported = run_apart("import numpy, pytriton", codes, tmp_path_factory.mktemp("named"))
    return dict(zip(NAMES, reported.values()))


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_resolved_on_first_use(name: str, named: dict[str, Reported]) -> None:
    assert named[name].printed.startswith("pytriton.")


def test_every_public_name_can_be_resolved(tmp_path: Path) -> None:
    code = "import pytriton; [getattr(pytriton, n) for n in [*pytriton.__all__, *dir(pytriton)]]"
    run_python("-c", code, cwd=tmp_path)


def test_submodules_are_attributes_after_a_plain_import(tmp_path: Path) -> None:
    code = "import pytriton; print(pytriton.exceptions.__name__, pytriton.model_config.__name__)"
    done = run_python("-c", code, cwd=tmp_path)
    assert done.stdout.split() == ["pytriton.exceptions", "pytriton.model_config"]


CLIENTS = [
    ("ModelClient", "localhost", "tritonclient.http"),
    ("FuturesModelClient", "localhost", "tritonclient.http"),
    ("ModelClient", "grpc://localhost", "tritonclient.grpc"),
    ("DecoupledModelClient", "grpc://localhost", "tritonclient.grpc"),
    ("AsyncioModelClient", "localhost", "tritonclient.http.aio"),
    ("AsyncioModelClient", "grpc://localhost", "tritonclient.grpc.aio"),
]


def construction(client: str, url: str) -> str:
    return f"import pytriton; pytriton.client.{client}({url!r}, 'm')"


@pytest.fixture(scope="module")
def constructed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reported]:
    """The outputs of programs that each create another client first; all import numpy."""
    codes = [construction(client, url) for client, url, _ in CLIENTS]
    return run_apart("import numpy", codes, tmp_path_factory.mktemp("constructed"))


@pytest.mark.parametrize(("client", "url", "module"), CLIENTS)
def test_constructing_a_client_imports_its_protocol(
    client: str, url: str, module: str, constructed: dict[str, Reported]
) -> None:
    """So the first request does not; and programs that use HTTP do not import gRPC, or vice versa."""
    printed, names = constructed[construction(client, url)]
    assert module in names, printed
    assert names & {*PROTOCOLS} <= {module, module.removesuffix(".aio")}
    foreign = {"aiohttp", "gevent", "geventhttpclient"} if "grpc" in url else {"grpc"}
    assert sorted(names & foreign) == []


def test_a_wrong_name_is_an_attribute_error() -> None:
    import pytriton

    with pytest.raises(AttributeError, match="'pytriton' has no attribute 'Tensr'"):
        pytriton.Tensr  # noqa: B018


def test_a_users_modules_do_not_shadow_ours(tmp_path: Path) -> None:
    for name in ("worker", "dispatcher", "proxy_backend"):
        (tmp_path / f"{name}.py").write_text("OWNER = 'user'\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import dispatcher, proxy_backend, worker\n"
        "import pytriton.dispatcher, pytriton.proxy_backend, pytriton.worker\n"
        "for module in (dispatcher, proxy_backend, worker):\n"
        "    assert module.OWNER == 'user', module\n"
        "for name in ('dispatcher', 'proxy_backend', 'worker'):\n"
        "    assert not hasattr(getattr(pytriton, name), 'OWNER'), name\n"
    )
    run_python(str(script), cwd=tmp_path)


def test_the_bare_names_are_not_importable(tmp_path: Path) -> None:
    code = (
        "from importlib.util import find_spec\n"
        "print([find_spec(name) for name in ('dispatcher', 'proxy_backend', 'worker')])"
    )
    assert run_python("-c", code, cwd=tmp_path).stdout.strip() == "[None, None, None]"


def test_the_version_is_that_of_the_distribution() -> None:
    import pytriton

    assert f'\nversion = "{pytriton.__version__}"\n' in (ROOT / "pyproject.toml").read_text()


def test_a_clashing_distribution_is_named_with_the_fix(tmp_path: Path) -> None:
    """A folder of metadata makes a distribution count as installed."""
    info = tmp_path / "nvidia_pytriton-0.7.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-pytriton\nVersion: 0.7.0\n")
    code = "from pytriton._clash import clashing_distribution as c; print(c())"
    message = run_python("-c", code, cwd=tmp_path).stdout
    assert "nvidia-pytriton 0.7.0 is installed in the same environment" in message
    assert "pip uninstall -y nvidia-pytriton pytriton-daemon" in message
    assert "pip install WHAT\nwhere WHAT is what it was installed from" in message


def test_without_a_clash_nothing_is_reported(tmp_path: Path) -> None:
    code = "from pytriton._clash import clashing_distribution as c; print(c())"
    assert run_python("-c", code, cwd=tmp_path).stdout == "None\n"
