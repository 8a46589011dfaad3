"""load_model, unload_model and is_model_ready from a model.py: as in Triton's python backend, but for registered names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.inference import Inference
from support.model_folders import make_model
from support.plain_triton import plain_triton
from support.running import RunningDaemon, eventually

#: Evaluates what it is asked; what that raises is an answer, too.
ASKER = """
    def tell(self, what):
        try:
            return eval(what, {"pb_utils": pb_utils, "self": self})
        except Exception as error:
            return f"{type(error).__name__}: {error}"
"""
#: A configuration that goes with files.
OTHER = json.dumps(
    {
        "backend": "python",
        "input": [{"name": "what", "data_type": "TYPE_STRING", "dims": [1]}],
        "output": [{"name": "told", "data_type": "TYPE_STRING", "dims": [1]}],
        "parameters": {"size": {"string_value": "big"}},
    }
)


def ask(http: str, model: str, what: str) -> str:
    """Return what a model of `make_model` tells, in a few words."""
    inference = Inference("http", http)
    try:
        told = inference.infer(model, {"what": np.array([what.encode()], np.object_)})["told"]
    finally:
        inference.close()
    return str(told[0].decode())


def control(http: str, call: str) -> str:
    """Have the model `asker` call a function of pb_utils; return what it gave."""
    return ask(http, "asker", f"self.tell({'pb_utils.' + call!r})")


def make_code(told: str) -> bytes:
    """Return a model.py that tells always the same."""
    return f"""
import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        self.args = args
    def execute(self, requests, told={told}):
        tensor = pb_utils.Tensor("told", np.array([str(told).encode()], np.object_))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
""".encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model repository, and the model that asks."""
    folder = tmp_path_factory.mktemp("control")
    for name in ("one", "two"):
        make_model(folder / "repository" / name)
    make_model(folder / "asker", more=ASKER)
    return folder


@pytest.fixture(scope="module")
def daemon(folder: Path) -> Iterator[RunningDaemon]:
    """A daemon with that repository, of which nothing is loaded, and the model that asks."""
    repository = [str(folder / "repository")]
    with RunningDaemon.start(model_repository=repository, model_control_mode="explicit") as running:
        running.client.register_model(folder / "asker")
        yield running


@pytest.fixture(scope="module")
def stock(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Triton's own python backend with the same models; where it answers HTTP."""
    own = tmp_path_factory.mktemp("stock")
    shutil.copytree(folder / "repository", own / "models")
    shutil.copytree(folder / "asker", own / "models" / "asker")
    options = ["--model-control-mode=explicit", "--load-model=asker"]
    with plain_triton(own, {}, options) as triton:
        yield triton.http.partition("//")[2]


def test_the_same_calls_have_the_same_outcome(daemon: RunningDaemon, stock: str) -> None:
    calls = [
        "is_model_ready('one')", "load_model('one')", "is_model_ready('one')",
        "is_model_ready('one', '1')", "is_model_ready('one', '7')", "is_model_ready('one', 'x')",
        "is_model_ready('nobody')", "is_model_ready(3)", "load_model('nobody')", "load_model(3)",
        "load_model('one', config='nonsense')", "load_model(model_name='one')",
        "load_model('')", "load_model('one', files={'file:1/model.py': 'no bytes'})",
        "load_model('three', files={'file:1/model.py': b'x'})",
        f"load_model('three', config={OTHER!r}, files={{'1/model.py': b'x'}})",
        f"load_model('three', config={OTHER!r}, files={{'file:1/model.py': b'not Python'}})",
        "is_model_ready('three')", "unload_model('nobody')", "unload_model('one')",
        "is_model_ready('one')", "unload_model('one')", "unload_model('one', True)",
        "unload_model('one', unload_dependents=1)", "load_model('asker')",
    ]  # fmt: skip
    for call in calls:
        wanted, got = control(stock, call), control(daemon.http, call)
        # The reasons are ours; the exception, and what could not be done, are theirs.
        assert got.partition(":")[0] == wanted.partition(":")[0], (call, wanted, got)
        if wanted.startswith("TritonModelException"):
            assert got.split(":")[1] == wanted.split(":")[1], (call, wanted, got)


def test_files_make_a_model_until_it_is_unloaded(daemon: RunningDaemon) -> None:
    for told in ("first", "second"):
        code = make_code(repr(told))
        call = f"load_model('brought', {OTHER!r}, {{'file:1/model.py': {code!r}}})"
        assert control(daemon.http, call) == "None"
        assert ask(daemon.http, "brought", "") == told
    broken = f"load_model('brought', {OTHER!r}, {{'file:1/model.py': b'not Python'}})"
    assert "Failed to load model" in control(daemon.http, broken)
    assert ask(daemon.http, "brought", "") == "second"  # what was there serves on
    outside = f"load_model('brought', {OTHER!r}, {{'file:../../model.py': b''}})"
    assert "leads out of the model's folder" in control(daemon.http, outside)
    given = Path(daemon.config.runtime_dir) / "given"
    assert len(list(given.glob("*/brought/1/model.py"))) == 1
    assert control(daemon.http, "unload_model('brought')") == "None"
    assert control(daemon.http, "is_model_ready('brought')") == "False"
    eventually(lambda: not list(given.iterdir()), "its files are gone")
    assert "no model repository has a model 'brought'" in control(
        daemon.http, "load_model('brought')"
    )


def test_files_and_a_configuration_come_in_place_of_the_repositorys_own(
    daemon: RunningDaemon,
) -> None:
    call = f"load_model('two', {OTHER!r}, {{'file:1/model.py': {make_code('99')!r}}})"
    assert control(daemon.http, call) == "None"
    assert ask(daemon.http, "two", "1 + 1") == "99"
    assert control(daemon.http, f"load_model('two', config={OTHER!r})") == "None"
    assert ask(daemon.http, "two", "1 + 1") == "2"
    assert (
        ask(daemon.http, "two", "'\"string_value\":\"big\"' in self.args['model_config']") == "True"
    )
    (model,) = [one for one in daemon.client.repository() if one.name == "two"]
    assert model.state == "ready"


def test_registered_names_belong_to_who_registered_them(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    daemon.client.register_model(make_model(tmp_path / "mine"))
    assert control(daemon.http, "is_model_ready('mine')") == "True"
    assert control(daemon.http, "load_model('mine')") == "None"  # it is served already
    assert "is registered" in control(daemon.http, f"load_model('mine', {OTHER!r})")
    refused = control(daemon.http, "unload_model('mine')")
    assert refused.startswith("TritonModelException: Failed to unload model: ")
    assert "unregister mine" in refused
    assert ask(daemon.http, "mine", "6 * 7") == "42"


def test_a_model_loads_others_when_it_starts_and_lets_go_of_them_at_its_end(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    folder = make_model(
        tmp_path / "pipeline",
        initialize="pb_utils.load_model('one')",
        more="    def finalize(self):\n        pb_utils.unload_model('one')\n",
    )
    model = daemon.client.register_model(folder)
    assert ask(daemon.http, "pipeline", "pb_utils.is_model_ready('one')") == "True"
    assert ask(daemon.http, "one", "2 + 3") == "5"
    model.unregister()
    assert control(daemon.http, "is_model_ready('one')") == "False"
