"""When tritonserver's own python backend gets its Python, and how often that is tried."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytriton._host.install import proxy_env, python_on_demand
from pytriton._host.install.cache import ServerRuntimeError
from pytriton._host.install.interpreters import library_name
from pytriton._host.install.proxy_env import ProxyEnvironment
from pytriton._host.install.python_on_demand import PythonOnDemand
from pytriton._host.install.server_runtime import (
    PythonBackend,
    ServerChoice,
    ServerRuntime,
    is_python_laid_out,
    lay_out_backends,
    lay_out_python,
    python_link,
)
from pytriton._host.install.server_tree import ServerTree
from pytriton._protocol.errors import RemoteFailure


class Maker:
    """Replaces `make_python_backend`: fails while it has no answer."""

    def __init__(self) -> None:
        self.answer: PythonBackend | None = None
        self.asked = 0

    def __call__(self, *_: object) -> PythonBackend:
        self.asked += 1
        if self.answer is None:
            raise ServerRuntimeError("no index answers")
        return self.answer


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch) -> Maker:
    maker = Maker()
    monkeypatch.setattr(python_on_demand, "make_python_backend", maker)
    return maker


@pytest.fixture
def backends(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "backends"
    (folder / "written-in-python").mkdir(parents=True)
    (folder / "written-in-python" / "model.py").touch()
    (folder / "onnxruntime").mkdir()
    return folder


def on_demand(backends: Path) -> PythonOnDemand:
    tree = ServerTree(backends, backends, None, (), (((3, 11), backends),), None)
    return PythonOnDemand(ServerRuntime(tree, ServerChoice(), None, None), backends)


def python_of(folder: Path) -> PythonBackend:
    return PythonBackend(folder / "stub", ProxyEnvironment(folder / "env"))


def test_which_models_need_python(backends: Path) -> None:
    async def test() -> None:
        one = on_demand(backends)
        names = ["python", "written-in-python", "onnxruntime", "ensemble", ""]
        assert [one.is_needed(name) for name in names] == [True, True, False, False, False]

    asyncio.run(test())


def test_the_python_is_created_once(backends: Path, maker: Maker, tmp_path: Path) -> None:
    async def test() -> None:
        one = on_demand(backends)
        for _ in range(2):
            with pytest.raises(RemoteFailure, match=r"m needs.*no index answers.*install-server"):
                await one.ensure("m")
        assert not python_link(backends).is_symlink()
        maker.answer = python_of(tmp_path)
        await asyncio.gather(*(one.ensure("m") for _ in range(5)))
        assert maker.asked == 3
        assert python_link(backends).readlink() == tmp_path / "env"
        assert (backends / "python").readlink() == tmp_path / "stub"

    asyncio.run(test())


def test_an_existing_python_is_not_created_again(
    backends: Path, maker: Maker, tmp_path: Path
) -> None:
    async def test() -> None:
        lay_out_python(python_of(tmp_path), backends)
        one = on_demand(backends)
        assert one.is_there
        await one.ensure("m")
        assert maker.asked == 0

    asyncio.run(test())


def make_whole(environment: Path, requirements: Sequence[str]) -> None:
    """Create what `make_proxy_environment` leaves, without the contents of packages."""
    names = [f"lib/python3.11/site-packages/{name}/__init__.py" for name in ("numpy", "zmq")]
    names.append("lib/python3.11/site-packages/msgspec/__init__.py")
    for name in (*names, "bin/python3", f"{proxy_env.LIBRARY_DIR}/{library_name((3, 11))}"):
        (environment / name).parent.mkdir(parents=True)
        (environment / name).touch(mode=0o755)
    facts = {"requirements": requirements, "interpreter": sys.executable}
    (environment / "pytriton-daemon.json").write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("requirements", "missing", "backend", "stays"),
    [
        (proxy_env.REQUIREMENTS, "", "stub", True),
        (("numpy<1",), "", "stub", False),
        (proxy_env.REQUIREMENTS, "bin/python3", "stub", False),
        (proxy_env.REQUIREMENTS, "pytriton-daemon.json", "stub", False),
        (proxy_env.REQUIREMENTS, "", "stub of another server", False),
    ],
    ids=["as it was", "other packages", "no interpreter", "half made", "another tritonserver"],
)
def test_an_upgrade_keeps_a_matching_environment(
    tmp_path: Path, requirements: Sequence[str], missing: str, backend: str, stays: bool
) -> None:
    python = python_of(tmp_path)
    make_whole(python.environment.root, requirements)
    if missing:
        (python.environment.root / missing).unlink()
    servers = tmp_path / "server" / "backends"
    servers.mkdir(parents=True)
    tree = ServerTree(servers, servers, None, (), (((3, 11), tmp_path / backend),), None)
    runtime = ServerRuntime(tree, ServerChoice(), None, None)
    backends = lay_out_backends(runtime, tmp_path / "run")
    lay_out_python(python, backends)
    lay_out_backends(runtime, tmp_path / "run", is_taken_over=True)
    assert is_python_laid_out(backends) == stays
    if stays:
        assert (backends / "python").readlink() == python.folder
        assert python_link(backends).readlink() == python.environment.root
    lay_out_backends(runtime, tmp_path / "run")  # by a later daemon
    assert not is_python_laid_out(backends)


def test_models_that_may_do_without_python_wait_once(backends: Path, maker: Maker) -> None:
    async def test() -> None:
        one = on_demand(backends)
        await one.ensure_if_possible("a")
        await one.ensure_if_possible("b")
        assert maker.asked == 1

    asyncio.run(test())
