"""What a worker gets from the process of its registrant, or of the daemon: environment variables, arguments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.forks.prefork import command
from support.models.inference import infer_once
from support.models.model_folders import ask, make_model
from support.real_daemon import ANSWER_S, RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton.daemon import connect
from pytriton.exceptions import RegistrationError
from pytriton.model_config import ModelConfig, Tensor

WHAT = [Tensor(name="what", dtype=np.bytes_, shape=(1,))]
REPORTED = [Tensor(name="told", dtype=np.bytes_, shape=(1,))]
UNBATCHED = ModelConfig(batching=False)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    folder = tmp_path_factory.mktemp("models")
    make_model(folder / "of-a-repository")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MODEL_DIR", "/models")
        patch.setenv("HF_TOKEN", "a secret")
        patch.setenv("OTHER_TOKEN", "a secret")
        running = RunningDaemon.start(
            model_repository=(str(folder),), model_env=("HF_TOKEN", "OF_THE_SETTING=1 2")
        )
    with running:
        eventually(
            lambda: running.client.repository()[0].state == "ready",
            lambda: str(running.client.repository()),
        )
        yield running


def evaluates(requests: Any) -> Any:
    return [
        {"told": np.array([str(eval(one["what"][0].decode(), {"os": os}))], np.object_)}
        for one in requests
    ]


def reads_a_token(requests: Any) -> Any:
    return [{"told": np.array([os.environ["HF_TOKEN"]], np.object_)} for _ in requests]


def register(infer: Any, name: str, **options: Any) -> None:
    options = {"isolation": "process", "progress": False, **options}
    connect(options.pop("daemon").config.runtime_dir, ANSWER_S).register(
        infer, name, WHAT, REPORTED, UNBATCHED, **options
    )


def test_variables_are_forwarded_and_the_others_are_named(
    daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the registration, if the use can be detected there, and in the worker's KeyError."""
    monkeypatch.setenv("MY_SETTING", "12")
    monkeypatch.setenv("HF_TOKEN", "secret")
    register(evaluates, "evaluates", daemon=daemon)
    assert ask(daemon, "evaluates", "os.environ['MY_SETTING']") == "12"
    assert ask(daemon, "evaluates", "os.getenv('HF_TOKEN')") == "None"
    with pytest.raises(InferenceServerException) as caught:
        ask(daemon, "evaluates", "os.environ['HF_TOKEN']")
    assert "KeyError: 'HF_TOKEN' (this environment variable is set where" in str(caught.value)
    assert "register(..., env=['HF_TOKEN']) forwards it" in str(caught.value)
    with pytest.raises(InferenceServerException, match=r"KeyError: 'NOWHERE' \[request id: "):
        ask(daemon, "evaluates", "os.environ['NOWHERE']")
    what = "os.environ.get('HF_TOKEN', 1), 'HF_TOKEN' in os.environ, len(os.environ.copy()) > 3"
    assert ask(daemon, "evaluates", what) == "(1, False, True)", "all else is as ever"

    with pytest.warns(UserWarning, match=r"'token' reads HF_TOKEN.*env=\['HF_TOKEN'\]") as warned:
        register(reads_a_token, "token", daemon=daemon)
    assert warned[0].filename == __file__
    with pytest.raises(InferenceServerException, match=r"'HF_TOKEN' .this environment variable"):
        ask(daemon, "token", "")
    register(reads_a_token, "token", daemon=daemon, env=["HF_TOKEN"], replace=True)
    assert ask(daemon, "token", "") == "secret"


def test_a_variable_that_loading_needs_is_named(
    daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")

    def load() -> Any:
        os.environ[("hf_" + "token").upper()]
        return evaluates

    with pytest.raises(RegistrationError, match=r"'HF_TOKEN' .this environment variable is set"):
        register(load, "loads", daemon=daemon, factory=True)


def test_repository_models_get_the_daemons_variables(daemon: RunningDaemon) -> None:
    model = "of-a-repository"
    assert ask(daemon, model, "os.environ['MODEL_DIR']") == "/models"
    assert ask(daemon, model, "os.environ['HF_TOKEN']") == "a secret", "the setting names it"
    assert ask(daemon, model, "os.environ['OF_THE_SETTING']") == "1 2"
    with pytest.raises(InferenceServerException, match=r"'OTHER_TOKEN' .*setting model_env"):
        ask(daemon, model, "os.environ['OTHER_TOKEN']")


PARSES = """
import argparse, os, sys
import numpy as np
from pytriton.daemon import connect
from pytriton.model_config import ModelConfig, Tensor

def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("runtime_dir")
    parser.add_argument("--size", type=int)
    return parser.parse_args()

def load():
    size = arguments().size
    return lambda requests: [{"y": size * one["x"]} for one in requests]

tensors = [[Tensor(name=name, dtype=np.float32, shape=(1,))] for name in "xy"]
connect(arguments().runtime_dir, 60).register(
    load, "parses", *tensors, ModelConfig(batching=False), factory=True, progress=False
)
"""


def test_arguments_are_the_registrants(daemon: RunningDaemon, tmp_path: Path) -> None:
    script = tmp_path / "parses.py"
    script.write_text(PARSES)
    command = [sys.executable, str(script), daemon.config.runtime_dir, "--size=3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert infer_once(daemon, "parses", {"x": np.ones(1, np.float32)})["y"].tolist() == [3]


COMPLETES = """
    @staticmethod
    def auto_complete_config(config):
        assert sys.argv == [""], sys.argv
        return config
"""


def test_a_model_py_sees_the_arguments_of_tritons_own_backend(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    """Those of a program started without a name: [""]."""
    assert ask(daemon, "of-a-repository", "sys.argv") == "['']"
    daemon.client.register_model(make_model(tmp_path / "argv", more=COMPLETES), progress=False)
    assert ask(daemon, "argv", "sys.argv") == "['']"


def test_a_module_registered_by_the_command_line_has_its_own_name(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    (tmp_path / "parsing.py").write_text(
        "import json, sys\n"
        "import numpy as np\n"
        "from pytriton import declare\n"
        "from pytriton.model_config import ModelConfig, Tensor\n"
        "AT_IMPORT = list(sys.argv)\n"
        "tensors = [[Tensor(name=n, dtype=np.bytes_, shape=(1,))] for n in ('what', 'told')]\n"
        "@declare(inputs=tensors[0], outputs=tensors[1], config=ModelConfig(batching=False))\n"
        "def parsing(requests):\n"
        "    told = json.dumps([AT_IMPORT, sys.argv])\n"
        "    return [{'told': np.array([told], np.object_)} for _ in requests]\n"
    )
    where = ("--runtime-dir", daemon.config.runtime_dir)
    done = command("register", "parsing:parsing", *where, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(ask(daemon, "parsing", "")) == [["parsing"], ["parsing"]]
