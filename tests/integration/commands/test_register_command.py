"""`pytriton-daemon register` for callables that the command's own interpreter cannot or need not import."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.linear_model import LinearRegression
from support.forks.prefork import command
from support.models.inference import Inference, infer_once
from support.real_daemon import FRONT, RunningDaemon

from pytriton._protocol.exit_codes import ExitCode
from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError

_MODULE = """
import numpy as np
import only_in_the_other
from pytriton import Tensor, batch, declare

print("its prints are no answers")

@declare("there", inputs=[Tensor((1,), np.float32, "x")], outputs=[Tensor((1,), np.float32, "y")])
@batch
def there(x):
    return {"y": x + only_in_the_other.NUMBER}

def shout(text: str) -> str:
    return text.upper()

def undeclared(requests):
    return requests
"""


@pytest.fixture
def daemon(daemon: RunningDaemon) -> Iterator[RunningDaemon]:
    with daemon.without_new_models():
        yield daemon


def _register(daemon: RunningDaemon, folder: Path, *arguments: str) -> tuple[int, str]:
    env = {**os.environ, "PYTRITON_DAEMON_RUNTIME_DIR": daemon.config.runtime_dir}
    done = command("register", *arguments, cwd=folder, env=env)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.timeout(600)
def test_a_module_is_imported_by_the_chosen_interpreter(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    """The command's own interpreter need not have the module's dependencies."""
    other = tmp_path / "other"
    subprocess.run([sys.executable, "-m", "virtualenv", "-q", "--no-pip", str(other)], check=True)
    (site,) = other.glob("lib/python*/site-packages")
    for name in ("numpy", "numpy.libs"):
        (site / name).symlink_to(Path(np.__file__).parents[1] / name)
    (site / "only_in_the_other.py").write_text("NUMBER = 64\n")
    (tmp_path / "mine.py").write_text(_MODULE)
    code, said = _register(daemon, tmp_path, "mine:there")
    assert code == ExitCode.USAGE
    assert "importing mine failed: ModuleNotFoundError: No module named 'only_in_the_other'" in said
    code, said = _register(
        daemon, tmp_path, "mine:there", "--python", "other", "--instances", "1:2"
    )
    assert code == ExitCode.OK, said
    assert "there is ready: http" in said
    assert infer_once(daemon, "there", {"x": np.ones((1, 1), np.float32)})["y"].tolist() == [[65]]
    (model,) = [one for one in daemon.client.status().models if one.name == "there"]
    assert model.python == str(other / "bin" / "python")
    for wrong, expected, reported in (
        ("mine:nothing", ExitCode.USAGE, "the module 'mine' has no attribute 'nothing'"),
        ("mine:undeclared", ExitCode.USAGE, "does not declare its inputs and outputs"),
        ("mine:there", ExitCode.REGISTRATION_FAILED, "a model named 'there' is already registered"),
    ):
        code, said = _register(daemon, tmp_path, wrong, "--python", "other")
        assert code == expected
        assert reported in said
        assert "Traceback" not in said
    daemon.client.unregister("there")
    code, said = _register(daemon, tmp_path, "mine:shout", "--python", "other")
    assert code == ExitCode.OK, said
    assert f"shout is ready: {_typed_url(daemon, 'shout')}\n" in said
    daemon.client.unregister("shout")


_BROKEN = """
from pytriton import Tensor, declare

X = [Tensor((1,), "float32", "x")]

@declare("made", inputs=X, outputs=X, factory=True)
def make():
    raise RuntimeError("cannot be made")

def undeclared(requests):
    return requests
"""


def test_unregisterable_targets_are_refused(daemon: RunningDaemon, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(_BROKEN)
    code, said = _register(daemon, tmp_path, "mine:make")
    assert code == ExitCode.REGISTRATION_FAILED
    assert "RuntimeError: cannot be made" in said
    assert "mine.py" in said  # the remote traceback
    for target, word in (
        ("no_such:thing", "no_such"),
        ("mine:nothing", "nothing"),
        ("mine:undeclared", "undeclared"),
    ):
        code, said = _register(daemon, tmp_path, target)
        assert (code, word in said) == (ExitCode.USAGE, True), said
    assert "made" not in [one.name for one in daemon.client.models()]


def test_the_route_of_a_typed_function_is_shown(daemon: RunningDaemon, tmp_path: Path) -> None:
    (tmp_path / "words.py").write_text("def shout(text: str) -> str:\n    return text.upper()\n")
    code, said = _register(daemon, tmp_path, "words:shout")
    assert code == ExitCode.OK, said
    assert f"shout is ready: {_typed_url(daemon, 'shout')}\n" in said
    daemon.client.unregister("shout")


def test_a_typed_function_without_http(tmp_path: Path) -> None:
    (tmp_path / "words.py").write_text("def shout(text: str) -> str:\n    return text.upper()\n")
    with RunningDaemon.start(allow_http=False) as daemon:
        code, said = _register(daemon, tmp_path, "words:shout")
        assert code == ExitCode.OK, said
        assert "shout is ready\n" in said


def _typed_url(daemon: RunningDaemon, name: str) -> str:
    """Return the URL of a typed function's route, which NVIDIA's frontend does not serve."""
    path = f"/v2/models/{name}" if FRONT == "triton" else f"/{name}"
    return f"http://{daemon.http}{path}"


def test_a_model_file_is_added_to_a_running_daemon(daemon: RunningDaemon, tmp_path: Path) -> None:
    x = np.array([[0, 0], [1, 0], [0, 1], [2, 5.0]])
    estimator = LinearRegression().fit(x, x @ [2, 3] + 1)
    joblib.dump(estimator, tmp_path / "line.joblib")
    code, said = _register(daemon, tmp_path, "line.joblib")
    assert code == ExitCode.OK, said
    connection = Inference("http", daemon.http)
    answer = connection.infer("line", {"input__0": np.array([[10.0, 1.0]])})
    assert answer["predict"].ravel().tolist() == pytest.approx([24])
    joblib.dump(LinearRegression().fit(x, x @ [2, 3]), tmp_path / "line.joblib")
    model = daemon.client.register_model(tmp_path / "line.joblib", replace=True, instances=2)
    assert len(model.instances) == 2
    answer = connection.infer("line", {"input__0": np.array([[10.0, 1.0]])})
    assert answer["predict"].ravel().tolist() == pytest.approx([23])
    connection.close()
    daemon.client.unregister("line")


def test_a_file_that_is_not_a_model_is_refused(daemon: RunningDaemon, tmp_path: Path) -> None:
    with pytest.raises(PyTritonBadParameterError, match=r"The file .*/none\.onnx does not exist"):
        daemon.client.register_model(tmp_path / "none.onnx")
    (tmp_path / "bad.joblib").write_bytes(b"no pickle")
    with pytest.raises(PyTritonValidationError, match=r"bad\.joblib cannot be loaded: "):
        daemon.client.register_model(tmp_path / "bad.joblib")
    joblib.dump({"no": "estimator"}, tmp_path / "dict.joblib")
    with pytest.raises(
        PyTritonValidationError,
        match=r"contains a dict, which is not an estimator: it has none of the methods predict",
    ):
        daemon.client.register_model(tmp_path / "dict.joblib")
    assert {"bad", "dict", "none"}.isdisjoint(one.name for one in daemon.client.status().models)
