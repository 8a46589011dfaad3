"""Names defined in a script are found in `__main__` of its workers, and of the processes that these spawn."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.models.model_folders import ask
from support.real_daemon import RunningDaemon, eventually

#: A script without a guard: whoever runs it again registers again, and leaves a line.
SCRIPT = """
import concurrent.futures, dataclasses, enum, multiprocessing, pickle, sys
from pathlib import Path
import numpy as np
from beside import tripled
from pytriton.daemon import connect
from pytriton.model_config import ModelConfig, Tensor

with open("runs", "a") as runs:
    print("run", file=runs)


class Base:
    def __call__(self, x):
        return shifted(x)

class Transformer(Base):  # only the saved model names it
    pass

def shifted(x):
    return x + STEP

STEP = 10
SCALE = 3
LARGE = np.full(100_000, 2.0)

@dataclasses.dataclass
class Point:
    x: int

class Color(enum.Enum):
    RED = 1

def square(x):
    return SCALE * x * x

def with_large(x):
    return float(LARGE[0] * x)

def pool(method, function=square):
    with multiprocessing.get_context(method).Pool(2) as workers:
        return workers.map(function, [1, 2])

def executor(method):
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as workers:
        return list(workers.map(square, [1, 2]))

def again(thing):
    return pickle.loads(pickle.dumps(thing))

def infer(requests):
    return [{"told": np.array([repr(eval(one["what"][0])).encode()], object)} for one in requests]

def saved():
    return pickle.loads(Path("saved").read_bytes())

def keeps():  # all that `eval` may name goes along
    return saved, again, pool, executor, square, with_large, tripled, Point, Color

infer.keeps = keeps
Path("saved").write_bytes(pickle.dumps(Transformer()))
TEXT = Tensor(name="what", dtype=bytes, shape=(1,)), Tensor(name="told", dtype=bytes, shape=(1,))
connect(sys.argv[1], 60).register(
    infer, "scripted", [TEXT[0]], [TEXT[1]], ModelConfig(batching=False), execution_timeout_s=250
)
"""

FOUND = {
    "saved()(1)": "11",
    "again(Point(3))": "Point(x=3)",
    "again(Color.RED) is Color.RED": "True",
    "pool('fork')": "[3, 12]",
    "pool('spawn')": "[3, 12]",
    "pool('forkserver')": "[3, 12]",
    "pool('spawn', with_large)": "[2.0, 4.0]",
    "pool('spawn', tripled)": "[3, 6]",
    "executor('spawn')": "[3, 12]",
    "executor('fork')": "[3, 12]",
}


@pytest.mark.timeout(300)
def test_names_of_the_main_script_resolve_in_workers(daemon: RunningDaemon, tmp_path: Path) -> None:
    """The script does not run again and may be deleted or changed: the registered code is served."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("def tripled(x):\n    return 3 * x\n")
    command = [sys.executable, str(script), daemon.config.runtime_dir]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {what: ask(daemon, "scripted", what) for what in FOUND} == FOUND
    script.unlink()
    (tmp_path / "beside.py").write_text("def tripled(x):\n    return 'changed'\n")
    first = daemon.client.models()[0].instances[0].pid
    assert first is not None
    os.kill(first, 9)
    eventually(
        lambda: [
            one.pid for one in daemon.client.models()[0].instances if one.pid not in (None, first)
        ],
        lambda: str(daemon.client.models()),
    )
    assert {what: ask(daemon, "scripted", what) for what in FOUND} == FOUND
    assert (tmp_path / "runs").read_text() == "run\n"
    daemon.client.unregister("scripted")


MODEL = """
import multiprocessing
import numpy as np
import triton_python_backend_utils as pb_utils

def square(x):
    return x * x

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for one in requests:
            method = pb_utils.get_input_tensor_by_name(one, "what").as_numpy()[0].decode()
            with multiprocessing.get_context(method).Pool(1) as workers:
                told = np.array([repr(workers.map(square, [1, 2])).encode()], object)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("told", told)]))
        return answers
"""
CONFIG = """
backend: "python"
input [{name: "what" data_type: TYPE_STRING dims: [1]}]
output [{name: "told" data_type: TYPE_STRING dims: [1]}]
"""


@pytest.mark.timeout(300)
def test_a_model_py_can_run_its_functions_in_process_pools(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    folder = tmp_path / "pooled"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(CONFIG)
    (folder / "1" / "model.py").write_text(MODEL)
    daemon.client.register_model(folder, execution_timeout_s=250, progress=False)
    for method in ("spawn", "forkserver", "fork"):
        assert ask(daemon, "pooled", method) == "[1, 4]"
    daemon.client.unregister("pooled")
