"""Clients in their own environments: other Pythons, other numpys, one daemon."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.environments import find_interpreter, installed_files, make_environment
from support.models.inference import PROTOCOLS, Array, infer_once
from support.models.tensors import X
from support.real_daemon import RunningDaemon

from pytriton._host import gpus
from pytriton.decorators import batch
from pytriton.exceptions import PyTritonBadParameterError, PyTritonError, RegistrationError
from pytriton.model_config import ModelConfig, Tensor

TEXT = [Tensor(name="text", dtype=np.object_, shape=(1,))]

#: Registers a closure by value that answers with where it runs.
CLIENT = """
import json, os, sys
import numpy as np
from pytriton.daemon import connect
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor

step = float(sys.argv[2])

@batch
def infer(x):
    where = json.dumps([list(sys.version_info[:2]), np.__version__, sys.prefix])
    return {"y": x + step, "where": np.full((len(x), 1), where, object)}

model = connect(sys.argv[1], 60).register(
    infer,
    sys.argv[3],
    inputs=[Tensor(name="x", dtype=np.float32, shape=(-1,))],
    outputs=[Tensor(name="y", dtype=np.float32, shape=(-1,)),
             Tensor(name="where", dtype=object, shape=(1,))],
    config=ModelConfig(max_batch_size=8),
)
print(model.url)
"""


def _environment(numpy: str, *versions: str) -> tuple[str, str]:
    """Return the interpreter of an environment and its Python version; skip the test if there is no such Python."""
    python = find_interpreter(*versions)
    if python is None:
        pytest.skip(f"no Python {' or '.join(versions)} on this machine")
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return make_environment(python, numpy), done.stdout.strip()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("version", "numpy"), [("3.9", "numpy==1.26.*"), ("3.13", "numpy>=2"), ("3.14", "numpy>=2")]
)
def test_all_dependencies_are_available_as_wheels(version: str, numpy: str) -> None:
    """pip chooses the newest version, which may have only a source archive: compiling takes minutes or fails."""
    python, _ = _environment(numpy, version)
    files = installed_files(python)
    assert any("/aiohttp-" in url for url in files)
    assert [url for url in files if not url.endswith(".whl")] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_clients_of_different_pythons_and_numpys(daemon: RunningDaemon, tmp_path: Path) -> None:
    """numpy 1.26 on Python 3.9 or 3.10 and numpy 2 on 3.12 to 3.14, registered with one daemon."""
    script = tmp_path / "client.py"
    script.write_text(CLIENT)
    old = _environment("numpy==1.26.*", "3.9", "3.10")
    new = _environment("numpy>=2", "3.14", "3.13", "3.12")
    for name, step, (python, _) in (("old", 1, old), ("new", 2, new)):
        command = [python, str(script), daemon.config.runtime_dir, str(step), name]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    x = np.array([[1, 2], [3, 4]], np.float32)
    for protocol in PROTOCOLS:
        for name, step, (python, version), numpy in (
            ("old", 1, old, "1.26"),
            ("new", 2, new, "2."),
        ):
            answer = infer_once(daemon, name, {"x": x}, protocol)
            assert answer["y"].tolist() == (x + step).tolist()
            got_version, got_numpy, prefix = json.loads(answer["where"][0, 0])
            assert ".".join(map(str, got_version)) == version
            assert got_numpy.startswith(numpy)
            assert prefix == str(Path(python).parent.parent)
    for name in ("old", "new"):
        daemon.client.unregister(name)


#: A module that both sides import: an object of it holds what numpy's major versions pickle differently.
HOLDER = """
import numpy as np

class Holder:
    def __init__(self):
        self.random = [np.random.default_rng(3), np.random.RandomState(4)]
        self.random += [np.random.Generator(kind(5)) for kind in (np.random.MT19937, np.random.SFC64)]
        for one in self.random:
            one.normal(size=3)
        self.values = {
            "array": np.arange(5.0),
            "scalars": [np.float32(3), np.datetime64("2020-01-01"), np.str_("word")],
            "objects": np.array([np.float64(1), "x", np.arange(2)], object),
            "dtype": np.dtype([("a", "i4")]),
            "record": np.rec.array([(1, 2)], dtype="i4,i4"),
            "masked": np.ma.array([1, 2], mask=[0, 1]),
            "polynomial": np.polynomial.Polynomial([1, 2]),
            "function": np.add,
        }

    def said(self):
        lists = ("scalars", "objects")
        values = {name: str(value) for name, value in self.values.items() if name not in lists}
        parts = [str(one) for name in lists for one in self.values[name]]
        return repr([values, parts, [one.normal() for one in self.random]])

    def __call__(self, requests):
        text = f"{np.__version__} {self.said()}".encode()
        return [{"text": np.array([text], object)} for _ in requests]
"""
HOLDS = """
import sys
import numpy as np
from holder import Holder
from pytriton.daemon import connect
from pytriton.model_config import ModelConfig, Tensor

holder = Holder()
connect(sys.argv[1], 60).register(
    holder, sys.argv[3], [Tensor(name="x", dtype=np.float32, shape=(1,))],
    [Tensor(name="text", dtype=object, shape=(1,))], ModelConfig(batching=False),
    python=sys.argv[2], sys_path=["."],
    env={"PYTHONWARNINGS": "error::DeprecationWarning"},  # numpy 2 warns of the names of numpy 1
)
print(holder.said())
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("registrant", ["1.24", "2"])
def test_values_of_numpy_cross_its_major_versions(
    daemon: RunningDaemon, tmp_path: Path, registrant: str
) -> None:
    """Random generators continue from the state in which they were registered."""
    old, _ = _environment("numpy==1.24.*", "3.11", "3.10", "3.9")
    python, other = (old, sys.executable) if registrant == "1.24" else (sys.executable, old)
    (tmp_path / "holder.py").write_text(HOLDER)
    (tmp_path / "script.py").write_text(HOLDS)
    name = f"holder_of_{registrant}"
    command = [python, "script.py", daemon.config.runtime_dir, other, name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    version, _, said = infer_once(daemon, name, {"x": np.ones(1, np.float32)})["text"][0].partition(
        b" "
    )
    assert said.decode() == done.stdout.strip()
    assert version.startswith(b"2." if registrant == "1.24" else b"1.24")
    daemon.client.unregister(name)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_code_by_value_needs_the_same_minor_version(daemon: RunningDaemon) -> None:
    """A clear error instead of a crash while unpickling."""
    others = [one for one in ("3.14", "3.13", "3.12") if not sys.version.startswith(f"{one}.")]
    python, _ = _environment("numpy>=2", *others)

    @batch
    def infer(x: Array) -> dict[str, Array]:
        return {"y": x}

    with pytest.raises(
        RegistrationError, match=r"was pickled by Python 3\.\d+, but its worker runs"
    ):
        daemon.client.register(infer, "mixed", X, X, python=python, progress=False)


def _bare_environment(folder: Path, *packages: str) -> Path:
    """Create an environment that has only these packages of this one."""
    subprocess.run([sys.executable, "-m", "virtualenv", "-q", "--no-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    own = Path(np.__file__).parents[1]
    for package in packages:
        for there in (own / package, own / f"{package}.libs"):
            if there.exists():
                (site / there.name).symlink_to(there)
    return folder


def test_an_environment_without_numpy_is_refused(daemon: RunningDaemon, tmp_path: Path) -> None:
    """The error contains the pip command."""
    python = _bare_environment(tmp_path / "bare")
    with pytest.raises(PyTritonBadParameterError, match=r"has no numpy.*-m pip install numpy$"):
        daemon.client.register(json.dumps, "bare", X, X, python=python, progress=False)


@pytest.mark.timeout(600)
def test_an_environment_gets_the_worker_s_requirements(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    """It needs only numpy itself, as with register_model."""
    python = _bare_environment(tmp_path / "bare", "numpy")

    @batch
    def double(x: Array) -> dict[str, Array]:
        return {"y": 2 * x}

    y = [Tensor(name="y", dtype=np.float32, shape=(-1,))]
    daemon.client.register(double, "provided", X, y, python=python, progress=False)
    assert infer_once(daemon, "provided", {"x": np.ones((1, 2), np.float32)})["y"].tolist() == [
        [2, 2]
    ]
    daemon.client.unregister("provided")


def _surroundings(requests: object) -> list[dict[str, Array]]:
    seen = [
        os.getcwd(),
        os.environ.get("CHOSEN"),
        os.environ.get("CUDA_VISIBLE_DEVICES"),
        importlib.import_module("helper_of_the_client").WORD,
    ]
    return [{"text": np.array([json.dumps(seen)], object)}]


def test_a_worker_gets_the_requested_environment(daemon: RunningDaemon, tmp_path: Path) -> None:
    """env=, cwd=, sys_path= and devices= reach the worker; devices= overrides a variable."""
    code, folder = tmp_path / "code", tmp_path / "folder"
    code.mkdir()
    folder.mkdir()
    (code / "helper_of_the_client.py").write_text("WORD = 'found'")
    model = daemon.client.register(
        _surroundings,
        "world",
        X,
        TEXT,
        ModelConfig(batching=False),
        env={"CHOSEN": "yes", "CUDA_VISIBLE_DEVICES": "5"},
        cwd=folder,
        sys_path=[code],
        devices=["cpu"],
        progress=False,
    )
    text = infer_once(daemon, "world", {"x": np.ones(1, np.float32)})["text"][0]
    assert json.loads(text) == [str(folder), "yes", "", "found"]
    assert [instance.device for instance in model.instances] == [""]
    model.unregister()


def test_each_device_gets_one_instance(daemon: RunningDaemon) -> None:
    """Without GPUs; tests/unit/dispatcher/test_devices.py has them."""
    model = daemon.client.register(
        json.dumps, "pinned", X, X, devices=["cpu", None, "cpu"], progress=False
    )
    assert [instance.device for instance in model.instances] == ["", None, ""]
    model.unregister()


@pytest.mark.skipif(gpus.missing("999") is None, reason="files do not tell how many GPUs there are")
def test_an_unavailable_gpu_is_refused(daemon: RunningDaemon) -> None:
    """No worker is started for it, and the model to be replaced remains."""
    model = daemon.client.register(json.dumps, "pinned", X, X, progress=False)
    said = "model pinned: devices= contains GPU 999: this machine has .* leave devices out, or set it to"
    wrong: list[list[Any]] = [[999], ["cpu", (999, 1000)]]
    for devices in wrong:
        with pytest.raises(RegistrationError, match=said):
            daemon.client.register(
                json.dumps, "pinned", X, X, devices=devices, replace=True, progress=False
            )
    assert model.info().state == "ready"
    model.unregister()


def test_a_missing_response_cache_is_refused(daemon: RunningDaemon) -> None:
    """tests/integration/python_models/test_model_config.py has a daemon with a cache."""
    with pytest.raises(RegistrationError, match="response_cache=True, but this daemon has no"):
        daemon.client.register(
            json.dumps, "cached", X, X, ModelConfig(response_cache=True), progress=False
        )
    assert daemon.client.models() == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"python": "/no/such/python"}, "python"),
        ({"cwd": "/no/such/folder"}, "cwd"),
        ({"devices": [-1]}, "devices"),
        ({"instances": 0}, "instances"),
    ],
)
def test_invalid_environment_arguments_are_refused(
    daemon: RunningDaemon, options: dict[str, object], said: str
) -> None:
    """They are reported before anything is started."""
    with pytest.raises(PyTritonError, match=said):
        daemon.client.register(json.dumps, "nowhere", X, X, progress=False, **options)  # type: ignore[arg-type]
    assert daemon.client.models() == []
