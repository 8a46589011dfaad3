"""A runner with its own daemon, and the control modes of model repositories."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from support.forks.prefork import command
from support.models import repositories
from support.real_daemon import RunningDaemon, eventually

from pytriton.client.exceptions import PyTritonClientError
from pytriton.exceptions import ModelExistsError, ModelNotFoundError, PyTritonDaemonError
from pytriton.model_config import Tensor
from pytriton.runner import Runner

pytest.importorskip("onnxruntime")
#: Daemons are started, and a poll's changes are waited for, one after the other.
pytestmark = pytest.mark.timeout(600)

X = np.ones((1, 4), np.float32)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    repositories.add_affine(tmp_path, "one", {1: 2.0})
    repositories.add_affine(tmp_path, "two", {1: 3.0})
    return tmp_path


def test_a_runner_starts_its_daemon_and_ends_it(repository: Path) -> None:
    arguments = ["--model-control-mode=explicit", "--load-model=one", "--log-verbose=1"]
    with Runner("own", repository, cli_args=arguments) as runner:
        status = runner.link().client.status()
        assert runner.one.run(X).as_numpy("y")[0, 0] == 2
        assert status.server.metrics_url
        with pytest.raises(ModelNotFoundError, match="'two' is unloaded"):
            runner.two.run(X)
        runner.sync.load_model("two")
        assert runner.two.run(X).as_numpy("y")[0, 0] == 3
        assert runner.models() == ["one", "two"]
        family = [psutil.Process(status.pid), *psutil.Process(status.pid).children(recursive=True)]
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []
    assert not Path(status.runtime_dir).exists()


class WritesPid:
    """Appends the pid of every process that unpickles it to a file."""

    def __init__(self, file: Path) -> None:
        self._file = str(file)

    def __reduce__(self) -> tuple[Any, ...]:
        code = f"import os; open({self._file!r}, 'a').write(f'{{os.getpid()}}\\n')"
        return exec, (code,)


def write_estimator(path: Path, estimator: Any, pids: Path, targets: list[Any]) -> None:
    estimator.fit([[0.0], [1.0]], targets).mark = WritesPid(pids)
    importlib.import_module("joblib").dump(estimator, path)


def test_only_workers_load_a_file_that_has_no_configuration(tmp_path: Path) -> None:
    """Loading it just to derive the configuration would import the framework once more before the workers start."""
    pytest.importorskip("joblib")
    linear = pytest.importorskip("sklearn.linear_model")
    pids, models = tmp_path / "pids", tmp_path / "models"
    config = "instance_group [ { count: 2 kind: KIND_CPU } ]"
    file = repositories.add(models, "steps", {"1/model.joblib": b""}, config) / "1" / "model.joblib"
    write_estimator(file, linear.LogisticRegression(), pids, [0, 1])
    with Runner("own", models) as runner:
        client = runner.link().client
        answer = runner.steps.run(np.array([[-9.0], [9.0]]))
        assert answer.as_numpy("predict").tolist() == [[0], [1]]
        (model,) = client.models()
        info = model.info()
        workers = [one.pid for one in info.instances if one.pid is not None]
        assert sorted(map(int, pids.read_text().split())) == sorted(workers)
        write_estimator(file, linear.LinearRegression(), pids, [0.5, 2.0])
        os.kill(workers[0], signal.SIGKILL)
        eventually(
            lambda: "has changed since" in str(client.status().problems),
            "a worker that does not fit the served configuration is refused",
            60,
        )
        assert len(runner.steps.run(np.zeros((1, 1))).as_numpy("predict")) == 1
        client.load_model("steps")
        assert runner.steps.run(np.array([[1.0]])).as_numpy("predict").tolist() == [[2.0]]


def test_a_daemon_that_does_not_start_says_why(repository: Path) -> None:
    runner = Runner("own", repository, cli_args=["--log-verbos=1"])
    with pytest.raises(
        PyTritonDaemonError, match=r"no option 'log-verbos' .did you mean log-verbose"
    ):
        runner.init_local()
    runner.close()


def test_the_daemon_ends_with_its_runners_process(repository: Path) -> None:
    code = (
        "import sys, time\n"
        "from pytriton.runner import Runner\n"
        "runner = Runner('own', sys.argv[1], cli_args=['--model-control-mode=explicit'])\n"
        "runner.init_local()\n"
        "status = runner.link().client.status()\n"
        "print(status.pid, status.runtime_dir, flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(repository)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        pid, runtime_dir = process.stdout.readline().split()
        daemon = psutil.Process(int(pid))
        assert daemon.is_running()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    daemon.wait(100)
    assert not Path(runtime_dir).exists()


def settled(daemon: RunningDaemon) -> bool:
    return all(one.state != "loading" for one in daemon.client.repository())


def double(requests: Any) -> Any:
    return [{"y": request["x"] * 2} for request in requests]


def test_polling_follows_the_files_and_ignores_registered_names(repository: Path) -> None:
    native = {"1/model.py": repositories.PYTHON_MODEL.encode()}
    for name in ("native", "ours"):
        repositories.add(repository, name, native, repositories.PYTHON_CONFIG)
    settings: dict[str, Any] = {
        "model_control_mode": "poll",
        "tritonserver_options": {"repository-poll-secs": "0.2"},
        "python_backend_model": ("native",),
    }
    with RunningDaemon.start(model_repository=(str(repository),), **settings) as daemon:
        runner = Runner("poll", daemon=daemon.client)

        def gives(name: str, factor: float) -> bool:
            try:
                return bool(runner[name].run(X).as_numpy("y")[0, 0] == factor)
            except (ModelNotFoundError, PyTritonClientError):
                return False  # not served (yet), or exchanged at this moment

        eventually(lambda: settled(daemon) and gives("one", 2.0), "the models are loaded", 200)
        tensors = [Tensor((4,), np.float32, "x")], [Tensor((4,), np.float32, "y")]
        for name in ("one", "native"):
            with pytest.raises(ModelExistsError, match=f"model named '{name}'"):
                daemon.client.register(double, name, *tensors)
        repositories.add_affine(repository, "one", {2: 7.0})
        repositories.add_affine(repository, "late", {1: 5.0})
        repositories.add_multiplier(repository, "ours", {1: 6.0})
        eventually(lambda: gives("one", 7.0) and gives("late", 5.0), "new files are served", 100)
        eventually(lambda: gives("ours", 6.0), "so is a new model.py", 60)
        os.rename(repository / "late", repository / ".away")
        eventually(lambda: not gives("late", 5.0), "a model whose files are gone is not served", 60)
        daemon.client.register(double, "mine", *tensors)
        repositories.add_affine(repository, "mine", {1: 9.0})

        def reported() -> Any:
            return [one for one in daemon.client.repository() if "already registered" in one.reason]

        eventually(reported, "the name is refused", 60)
        assert gives("mine", 2.0)
        with ThreadPoolExecutor(
            1
        ) as pool:  # an orderly stop answers what is under way, those of tritonserver itself, too
            slow = pool.submit(runner.native.run, -X)
            eventually(
                (repository / "native" / "1" / "slow").exists, "the request is under way", 60
            )
            assert daemon.stop() == 0
            assert slow.result().as_numpy("y")[0, 0] == -5
        runner.close()


def test_start_takes_repositories_as_flags(repository: Path, tmp_path: Path) -> None:
    flags = [
        f"--model-repository={repository}",
        "--model-repository=models",
        "--model-repository=s3://a/b",
    ]
    flags += ["--model-control-mode=explicit", "--load-model=one", "--load-model=two"]
    done = command("start", "--print-config", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f'model_repository = ["{repository}", "{tmp_path}/models", "s3://a/b"]' in done.stdout
    assert 'load_model = ["one", "two"]' in done.stdout
    done = command("start", "--print-config", "--load-model=one", cwd=tmp_path)
    assert done.returncode == 2
    assert "load_model needs model_control_mode explicit" in done.stderr
