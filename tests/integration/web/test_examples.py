"""The examples of typed functions, each called as its docstring says."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.real_daemon import FRONT, RunningDaemon

pytestmark = pytest.mark.skipif(FRONT == "triton", reason="NVIDIA's frontend has no routes")

EXAMPLES = Path(__file__).parents[3] / "examples" / "web"
PACKAGES = {"image_upload": "PIL", "tabular": "pydantic"}
#: What each example prints in the end, without spaces: `call`, then curl.
ANSWERS = {
    "csv_upload": ('{"height":1.5,"width":4.0}',) * 2,
    "image_upload": ('{"width":4,"height":2,"brightness":1.0}',) * 2,
    "text_labels": ('[{"name":"positive","score":0.6', '[{"name":"positive","score":0.6'),
    "text_stream": ("onceuponatimeonce", 'data:"once"\n\ndata:"upon"'),
    "tabular": ('{"probability":0.32', '{"probability":0.32'),
}


def test_all_examples_are_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(ANSWERS)


@pytest.mark.parametrize("name", ANSWERS)
def test_example(name: str, daemon: RunningDaemon) -> None:
    if name in PACKAGES and importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"not installed: {PACKAGES[name]}")
    folder = Path(tempfile.mkdtemp(prefix="ptd-"))
    shutil.copy(EXAMPLES / f"{name}.py", folder)
    if name == "image_upload":
        from PIL import Image

        Image.new("RGB", (4, 2), (255, 255, 255)).save(folder / "cat.jpg")
    if name == "csv_upload":
        (folder / "table.csv").write_text("height,width\n1,3\n2,5\n")
    env = {
        **os.environ,
        "PYTRITON_DAEMON_RUNTIME_DIR": daemon.config.runtime_dir,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }

    def run(command: str) -> str:
        done = subprocess.run(
            shlex.split(command.replace("127.0.0.1:8000", daemon.http)),
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    code = (folder / f"{name}.py").read_text()
    served, *commands = [
        line.strip()[2:] for line in code.splitlines() if line.strip().startswith("$ ")
    ]
    assert served == f"pytriton-daemon serve {name}.py"
    process = subprocess.Popen(
        [sys.executable, "-m", "pytriton._cli", *shlex.split(served)[1:]],
        cwd=folder,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None  # a pipe
        said = ""
        while "Ctrl-C" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        for command, answer in zip(commands, ANSWERS[name]):
            printed = run(command)
            compact = printed if command.startswith("curl -N") else "".join(printed.split())
            assert compact.replace(" ", "").startswith(answer), printed
    finally:
        process.terminate()
        process.communicate(timeout=60)
        shutil.rmtree(folder)
