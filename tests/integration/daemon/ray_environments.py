"""Use Ray's `runtime_env` with a fleet of two nodes on this machine; test_ray_fleet.py runs this program.

Ray listens on every address, so run it in its own network namespace. It prints each step.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from support.ray_nodes import FLAGS, kill_node, loopback_up, processes_here, ray_cluster, until

from pytriton.daemon import connect
from pytriton.decorators import batch
from pytriton.exceptions import FleetError, PyTritonBadParameterError
from pytriton.fleet.on_ray import NAMESPACE, connected
from pytriton.fleet.on_ray.client import RayFleetClient
from pytriton.fleet.on_ray.environments import named_actors
from pytriton.fleet.on_ray.lifecycle import start_fleet, stop_fleet
from pytriton.model_config import Tensor

_FLEET = "kept"
_PROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
#: A build backend without requirements, so that pip needs no package registry.
_BACKEND = """\
import zipfile


def build_wheel(folder, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(folder + "/tiny_part-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_part.py", "WORD = 'tiny'\\n")
        about = "tiny_part-1.0.dist-info/"
        wheel.writestr(about + "METADATA", "Metadata-Version: 2.1\\nName: tiny-part\\nVersion: 1.0\\n")
        wheel.writestr(about + "WHEEL", "Wheel-Version: 1.0\\nGenerator: backend\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(about + "RECORD", "")
    return "tiny_part-1.0-py3-none-any.whl"
"""


@batch
def report(x: Any) -> dict[str, Any]:
    """Return what the worker finds in its environment."""
    import importlib
    import sys

    words = {}
    for name in ("of_folder", "of_module", "tiny_part"):
        with contextlib.suppress(ImportError):
            words[name] = importlib.import_module(name).WORD
    words["env"] = {key: os.environ.get(key) for key in ("COLOUR", "EXPANDED")}
    words["data"] = Path("data.txt").read_text() if Path("data.txt").exists() else None
    words["python"] = sys.executable
    report = json.dumps(words).encode()
    return {"report": np.array([[report]] * len(x), dtype=object)}


class _Stage:
    def __init__(self, cluster: Any, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.ray = connected(cluster.address)
        start_fleet(_FLEET, cluster.address, flags=FLAGS, runtime_dir=str(folder))
        self.fleet: RayFleetClient = connect(fleet=_FLEET, ray_address=cluster.address)
        until(lambda: len(self.urls()) == 2, "the daemons")

    def register(
        self, name: str = "m", *, replace: bool = False, runtime_env: dict[str, Any]
    ) -> None:
        """Register `report` on both nodes."""
        self.fleet.register(
            report,
            name,
            [Tensor(name="x", dtype=np.float32, shape=(1,))],
            [Tensor(name="report", dtype=bytes, shape=(1,))],
            instances=2,
            replace=replace,
            runtime_env=runtime_env,
            progress=False,
        )

    def refused(self, kind: type[Exception], runtime_env: dict[str, Any]) -> str:
        """Register with a `runtime_env` that is refused; return the error."""
        message = ""
        try:
            self.register("bad", runtime_env=runtime_env)
        except kind as error:
            message = str(error)
        assert message, "the registration was not refused"
        return message

    def urls(self) -> dict[str, str]:
        return {
            one.node: one.status.server.http_url
            for one in self.fleet.nodes()
            if one.status is not None
        }

    def reported(self, name: str = "m") -> list[dict[str, Any]]:
        """Return the report of a worker on each node."""
        reports = []
        body = json.dumps(
            {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [0]}]}
        ).encode()
        for node in self.fleet.nodes():
            if node.status is None or name not in [one.name for one in node.status.models]:
                continue
            with urllib.request.urlopen(
                f"{node.status.server.http_url}/v2/models/{name}/infer", body, 100
            ) as answer:
                reports.append(json.loads(json.load(answer)["outputs"][0]["data"][0]))
        return reports

    def holders(self) -> list[str]:
        return named_actors(self.ray, f"fleet-{_FLEET}/environment-")

    def wait_for_holders(self, count: int) -> None:
        # On another node, Ray may still be creating an environment that is no longer needed.
        until(lambda: len(self.holders()) == count, f"{count} holders", 300)


def _run(stage: _Stage) -> None:
    folder = stage.folder
    for name, words in {"one": "folder", "two": "another folder"}.items():
        (folder / name).mkdir()
        (folder / name / "of_folder.py").write_text(f"WORD = {words!r}\n")
        (folder / name / "data.txt").write_text(words)
    (folder / "of_module").mkdir()
    (folder / "of_module" / "__init__.py").write_text("WORD = 'module'\n")
    variables = {"COLOUR": "blue", "EXPANDED": "${HOME}/x", "A_TOKEN": "t"}
    first = {
        "working_dir": str(folder / "one"),
        "py_modules": [str(folder / "of_module")],
        "env_vars": variables,
    }

    stage.register(runtime_env=first)
    expected = {"of_folder": "folder", "of_module": "module", "data": "folder"}
    for one in stage.reported():
        assert expected.items() <= one.items(), one
        assert one["env"] == {"COLOUR": "blue", "EXPANDED": os.environ["HOME"] + "/x"}, one
    assert len(stage.reported()) == 2
    stage.wait_for_holders(2)
    _say("working_dir, py_modules, env_vars")

    stage.register("other", runtime_env=first)
    stage.wait_for_holders(2)
    stage.fleet.unregister("other")
    stage.register(replace=True, runtime_env={"working_dir": str(folder / "two")})
    assert {one["of_folder"] for one in stage.reported()} == {"another folder"}
    stage.wait_for_holders(2)
    # Nothing uses the first package anymore, so Ray may have deleted it.
    stage.fleet.rollback("m")
    assert {one["of_folder"] for one in stage.reported()} == {"folder"}
    stage.wait_for_holders(2)
    _say("replaced and rolled back")

    lost = {"working_dir": "gcs://_ray_pkg_0000000000000000.zip"}
    assert "Ray has no package" in stage.refused(PyTritonBadParameterError, lost)
    why = stage.refused(FleetError, {"pip": [str(folder / "nowhere")]})
    assert "Ray could not create the runtime_env" in why, why
    assert "runtime_env/pip.py" in why, why
    stage.wait_for_holders(2)
    assert [one.name for one in stage.fleet.models()] == ["m"]
    _say("failures are reported with Ray's error")

    for kind in ("ray::NodeActor", "ray::Controller", "ray::EnvironmentHolder"):
        _kill(kind)
        until(
            lambda: stage.fleet._ask("progress", "m")[0] and len(stage.urls()) == 2, f"after {kind}"
        )
        stage.wait_for_holders(2)
        assert {one["of_folder"] for one in stage.reported()} == {"folder"}
    _say("actors killed")
    _end_a_holder(stage)
    _say("a holder ended and replaced")

    kill_node(stage.cluster, stage.fleet, stage.cluster.list_all_nodes()[-1])
    until(
        lambda: len(stage.fleet.nodes()) == 1 and stage.fleet._ask("progress", "m")[0],
        "all on one node",
    )
    stage.wait_for_holders(1)
    _say("a node killed")

    project = folder / "tiny"
    project.mkdir()
    (project / "pyproject.toml").write_text(_PROJECT)
    (project / "backend.py").write_text(_BACKEND)
    offline = ["--no-index", "--disable-pip-version-check", "--no-cache-dir"]
    stage.register(
        "piped", runtime_env={"pip": {"packages": [str(project)], "pip_install_options": offline}}
    )
    (one,) = stage.reported("piped")
    assert one["tiny_part"] == "tiny", one
    assert "runtime_resources" in one["python"], one
    stage.wait_for_holders(2)
    _say("pip")

    stage.fleet.unregister("piped")
    stage.wait_for_holders(1)
    _run_interpreters(stage, project)
    stage.fleet.unregister("m")
    stage.wait_for_holders(0)
    stage.register("last", runtime_env={"env_vars": {"COLOUR": "red"}})
    _say("unregistered")


def _end_a_holder(stage: _Stage) -> None:
    """End a holder as a user of Ray could. Ray does not restart it."""
    names = f"fleet-{_FLEET}/m/"
    victim, *_ = named_actors(stage.ray, names)
    stage.ray.kill(stage.ray.get_actor(victim, NAMESPACE), no_restart=True)

    def there() -> list[str]:
        return [one for one in named_actors(stage.ray, names) if one != victim]

    until(lambda: len(there()) == 2 and stage.fleet._ask("progress", "m")[0], "another holder")


def _run_interpreters(stage: _Stage, project: Path) -> None:
    """Run workers in an existing interpreter and, if uv is installed, in one that uv creates."""
    other = _create_interpreter(stage.folder / "other")
    stage.register("elsewhere", runtime_env={"py_executable": other})
    (one,) = stage.reported("elsewhere")
    assert one["python"] == other, one
    stage.fleet.unregister("elsewhere")
    stage.wait_for_holders(1)
    _say("py_executable")
    if importlib.util.find_spec("uv") is None:
        _say("skipped uv, which is not installed")
        return
    offline = {"packages": [str(project)], "uv_pip_install_options": ["--offline", "--no-cache"]}
    stage.register("by_uv", runtime_env={"uv": offline})
    (one,) = stage.reported("by_uv")
    assert one["tiny_part"] == "tiny", one
    assert "runtime_resources" in one["python"], one
    stage.fleet.unregister("by_uv")
    stage.wait_for_holders(1)
    _say("uv")
    _run_uv_run(stage, project)


def _run_uv_run(stage: _Stage, project: Path) -> None:
    """Run workers, and a client, with `uv run`. Its environment only exists as long as the process that it runs."""
    uv = str(Path(sys.executable).with_name("uv"))
    uv_run = [uv, "run", "--offline", "--no-project", "--python", sys.executable]
    launcher = " ".join([*uv_run, "--with", str(project), "python"])
    stage.register("uv_run", runtime_env={"py_executable": launcher})
    (first,) = stage.reported("uv_run")
    assert first["tiny_part"] == "tiny", first
    _say(f"py_executable with uv run: {first['python']}")
    _kill("ray::EnvironmentHolder", every=True)
    until(lambda: not Path(first["python"]).exists(), "uv deletes its environment")

    def again() -> bool:
        return all(
            one["python"] != first["python"] and one["tiny_part"] == "tiny"
            for one in stage.reported("uv_run")
        )

    until(again, "workers in the new environment")
    stage.fleet.unregister("uv_run")
    stage.wait_for_holders(1)
    _say("the environment replaced")
    program = (
        "import sys\n"
        "from pytriton.fleet.on_ray import connected\n"
        "print(connected(sys.argv[1]).get_runtime_context().runtime_env)"
    )
    client = subprocess.run(
        [*uv_run, "python", "-c", program, stage.cluster.address],
        cwd=stage.folder, check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert client.stdout.strip() == "{}", client.stdout
    _say("a client in uv run")


def _create_interpreter(folder: Path) -> str:
    """Create an environment with all packages of this one; return its interpreter."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "all.pth").write_text("\n".join(one for one in sys.path if "-packages" in one))
    return str(folder / "bin" / "python")


def _kill(title: str, *, every: bool = False) -> None:
    found = [one for one in processes_here() if " ".join(_words(one)).startswith(title)]
    assert found, title
    victims = found if every else found[:1]
    for one in victims:
        one.kill()
    psutil.wait_procs(victims, timeout=10)


def _words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return list(process.cmdline())
    return []


def main() -> None:
    """Run all steps on a new fleet."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    loopback_up()
    folder = Path(tempfile.mkdtemp(prefix="ptf-"))
    try:
        with ray_cluster(2) as cluster:
            stage = _Stage(cluster, folder)
            _say("the fleet runs")
            try:
                _run(stage)
            finally:
                stop_fleet(_FLEET, cluster.address)
            assert named_actors(stage.ray, f"fleet-{_FLEET}") == []
            _say("done: nothing is left behind")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_STARTED_AT = time.monotonic()


def _say(text: str) -> None:
    print(f"[{time.monotonic() - _STARTED_AT:5.1f} s] {text}", flush=True)


if __name__ == "__main__":
    main()
