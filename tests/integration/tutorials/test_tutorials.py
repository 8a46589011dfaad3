"""Every tutorial works as its page describes: its files, its commands in order, and their output.

The ports of the pages are replaced by free ones. Tutorials that start no daemon share one.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from documentation import tutorials
from support.forked_shell import ForkedShell
from support.ports import lasting_port
from support.real_daemon import FRONT, RunningDaemon, eventually

from pytriton.exceptions import ModelExistsError, ModelNotFoundError

ROOT = Path(__file__).parents[3]
PAGES = {page.stem: page.read_text(encoding="utf-8") for page in tutorials.pages(ROOT)}
#: Packages and programs that a tutorial needs; without them it is skipped.
PACKAGES = {
    "from-bentoml": ["xgboost"],
    "from-repository": ["xgboost"],
    "from-fastapi": ["fastapi", "uvicorn"],
    "from-torchserve": ["PIL"],
    "onnx": ["onnxruntime", "skl2onnx"],
    "torch-image": ["torch", "PIL"],  # torch is too large for the extra `dev`
    "xgboost": ["xgboost"],
}
PROGRAMS = {"one-machine": "openssl"}
#: Ports as the pages have them.
PORTS = (8000, 8001, 8002, 8003, 8010, 8011, 8012, 8020, 8021, 8022, 9000, 9090, 9441, 9442)
_PORT = re.compile(rf"(?<=[: ])(?:{'|'.join(map(str, PORTS))})\b")
_SETTINGS = {"HTTP_PORT": 8000, "GRPC_PORT": 8001, "METRICS_PORT": 8002, "OPENAI_PORT": 8003}


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[RunningDaemon, dict[int, int]]]:
    """A daemon for the tutorials that start none, and its addresses."""
    ports = {port: lasting_port() for port in PORTS}
    settings = {name.lower(): ports[port] for name, port in _SETTINGS.items()}
    with RunningDaemon.start(**settings) as daemon:
        yield daemon, ports


#: What the scripts of the tutorials import, as far as it is installed; onnxruntime starts a thread, which no fork has.
MODULES = (
    "numpy", "pytriton.client", "pytriton.daemon", "pytriton.decorators", "skl2onnx",
    "sklearn.datasets", "sklearn.linear_model", "sklearn.model_selection", "tritonclient.http", "xgboost",
)  # fmt: skip


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    """The folder with the `python` and `pytriton-daemon` that a tutorial's shell finds."""
    folder = Path(tempfile.mkdtemp(prefix="ptd-"))
    with ForkedShell(folder, *MODULES):
        yield folder
    shutil.rmtree(folder)


@pytest.fixture
def work() -> Iterator[Path]:
    """A copy of the examples in a folder with a short path, since it contains sockets."""
    folder = Path(tempfile.mkdtemp(prefix="ptd-"))
    shutil.copytree(ROOT / tutorials.EXAMPLES, folder, dirs_exist_ok=True)
    yield folder
    shutil.rmtree(folder)


def make_other_environment(folder: Path) -> None:
    """Create a virtual environment that sees this one's packages; installing them would need a package index."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "these.pth").write_text(sysconfig.get_path("purelib") + "\n")


def environment(
    work: Path, programs: Path, ports: dict[int, int], runtime_dir: str
) -> dict[str, str]:
    """Return the environment variables of a tutorial's shell."""
    folders = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
    found = {
        **os.environ,
        "PATH": os.pathsep.join(folders),
        "PYTRITON_DAEMON_RUNTIME_DIR": runtime_dir,
        "PYTRITON_DAEMON_STATE_DIR": str(work / "state"),
        "no_proxy": "localhost,127.0.0.1",
    }
    for setting, port in _SETTINGS.items():
        found[f"PYTRITON_DAEMON_{setting}"] = str(ports[port])
    return found


def run(name: str, folder: Path, env: dict[str, str], ports: dict[int, int]) -> None:
    """Run the commands of a page in one shell and compare their output."""

    def local(text: str) -> str:
        return _PORT.sub(lambda match: str(ports[int(match[0])]), text)

    for path in folder.iterdir():
        if path.is_file():
            path.write_text(local(path.read_text(encoding="utf-8")), encoding="utf-8")
    commands = list(tutorials.commands(PAGES[name]))
    steps = [
        _step(command, local(command.text), folder / f".{number}")
        for number, command in enumerate(commands)
    ]
    shell = subprocess.Popen(
        ["bash", "-c", "\n".join(steps)], cwd=folder, env=env, start_new_session=True
    )
    try:
        code = shell.wait(timeout=500)
    finally:
        os.killpg(shell.pid, signal.SIGKILL) if _lives(shell.pid) else None
        shell.wait()
    shown_ports = {str(port): str(number) for number, port in ports.items()}
    for number, command in enumerate(commands):
        output = (folder / f".{number}").read_text(encoding="utf-8")
        output = re.sub(r"(?<=:)\d{5}\b", lambda match: shown_ports.get(match[0], match[0]), output)
        failed = code != 0 and not (folder / f".{number + 1}").exists()
        assert not failed, f"$ {command.text}\n{output}"
        assert command.prints(output), f"$ {command.text}\nshown: {command.shown}\nis: {output}"


def _step(command: tutorials.Command, text: str, output: Path) -> str:
    """Return the shell code for a command. One that keeps running is ready after the last line of the page."""
    if not command.stays:
        return f"{{ {text}\n}} >{output} 2>&1 || exit 1"
    last = shlex.quote(command.shown.strip().splitlines()[-1])
    return (
        f": >{output}; {text} >{output} 2>&1 &\n"
        f"until grep -qF {last} {output}; do kill -0 $! || exit 1; sleep 0.1; done"
    )


def _lives(group: int) -> bool:
    """Return whether a process of the group is alive, such as a web service in the background."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PAGES)
def test_tutorial(
    name: str, work: Path, programs: Path, shared: tuple[RunningDaemon, dict[int, int]]
) -> None:
    missing = [one for one in PACKAGES.get(name, ()) if importlib.util.find_spec(one) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if name in PROGRAMS and shutil.which(PROGRAMS[name]) is None:
        pytest.skip(f"not installed: {PROGRAMS[name]}")
    if name == "one-machine" and FRONT == "triton":
        pytest.skip("NVIDIA's executable serves no HTTP with TLS")
    if "pytriton-daemon serve" in PAGES[name] and FRONT == "triton":
        pytest.skip("NVIDIA's executable has no routes")
    commands = [command.text for command in tutorials.commands(PAGES[name])]
    if not commands:
        pytest.skip("no command of this page can be run here: the page says why")
    folder = work / name
    if name == "other-venv":
        make_other_environment(folder / "other")
    if not any("pytriton-daemon start" in command for command in commands):
        daemon, ports = shared
        run(name, folder, environment(work, programs, ports, daemon.config.runtime_dir), ports)
        for model in daemon.client.models():
            with suppress(
                ModelNotFoundError, ModelExistsError
            ):  # of `serve`, which has been killed
                model.unregister()
        eventually(lambda: not daemon.client.models(), "no models are left")
        return
    ports = {port: lasting_port() for port in PORTS}
    env = environment(work, programs, ports, str(work / "run"))
    try:
        run(name, folder, env, ports)
    finally:
        for runtime_dir in (work / "run", folder / "node1", folder / "node2"):
            if runtime_dir.exists():
                stop = ["pytriton-daemon", "stop", "--runtime-dir", str(runtime_dir)]
                subprocess.run(stop, env=env, check=False, capture_output=True)
