"""Clients run where no daemon is running: on other systems, and in environments without the daemon's dependencies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.programs

#: Needed only by a daemon: installations on other systems lack these (pyproject.toml).
DAEMON_ONLY = (
    "cloudpickle", "filelock", "prometheus_client", "psutil", "rich", "starlette", "structlog", "textual", "typer",
    "uvicorn", "uvloop", "virtualenv", "zmq",
)  # fmt: skip
#: Not needed in a worker's environment: all but cloudpickle, msgspec, numpy and pyzmq
#: (pytriton/_register/environments.py).
NOT_IN_WORKERS = (
    "aiohttp", "filelock", "gevent", "grpc", "ml_dtypes", "prometheus_client", "psutil", "rich", "starlette",
    "structlog", "textual", "tritonclient", "typer", "uvicorn", "uvloop", "virtualenv",
)  # fmt: skip
#: Python modules that Windows lacks.
UNIX_ONLY = ("fcntl", "grp", "pwd", "resource", "termios")

_BLOCK = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

import types

for name in {blocked!r}:
    sys.modules.pop(name, None)
sys.modules["_scproxy"] = types.SimpleNamespace(_get_proxy_settings=None, _get_proxies=None)  # of macOS's Python
sys.meta_path.insert(0, Missing())
sys.platform = {platform!r}
"""
_CLIENTS = """
import pytriton, pytriton.client, pytriton.decorators, pytriton.model_config
for url in ("grpc://127.0.0.1:1", "http://127.0.0.1:1"):
    pytriton.client.ModelClient(url, "m", lazy_init=True).close()
"""


def run_without(
    code: str, folder: Path, *blocked: str, platform: str = "linux"
) -> subprocess.CompletedProcess[str]:
    """Run code in a Python that lacks some modules, on a system that calls itself `platform`."""
    script = _BLOCK.format(blocked=blocked, platform=platform) + code
    return subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("platform", "blocked"),
    [("darwin", DAEMON_ONLY), ("linux", (*DAEMON_ONLY, "msgspec", *UNIX_ONLY))],
    ids=["macOS", "as little as possible, without what Windows lacks"],
)
def test_clients_need_nothing_of_a_daemon(
    platform: str, blocked: tuple[str, ...], tmp_path: Path
) -> None:
    done = run_without(_CLIENTS, tmp_path, *blocked, platform=platform)
    assert done.returncode == 0, done.stderr


def test_a_worker_needs_four_packages(tmp_path: Path) -> None:
    code = "import pytriton.worker.process, pytriton.decorators, pytriton.model_config"
    done = run_without(code, tmp_path, *NOT_IN_WORKERS)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "code",
    [
        "from pytriton.daemon import connect",
        "import pytriton; pytriton.connect",
        "import pytriton; pytriton.triton",
        "from pytriton._cli import main; main()",
        "from pytriton.check import main; main()",
    ],
)
def test_features_that_need_linux_report_it(code: str, tmp_path: Path) -> None:
    done = run_without(code, tmp_path, *DAEMON_ONLY, platform="darwin")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "pytriton-daemon serves models on Linux only" in last
    assert "pytriton.client.ModelClient" in last
