"""Start the daemon of an installed release, serve a model and send it requests. Print a report as JSON.

`python smoke_test.py FOLDER register` starts a daemon in FOLDER, registers a model, queries it, and stops the daemon.
`python smoke_test.py FOLDER restore` does the same with the model that is registered in the state directory in FOLDER.

Uses only the installed package, so it works with every release.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

MODEL = """
import numpy as np

from pytriton import declare
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor


@declare(
    name="linear",
    inputs=[Tensor(name="x", dtype=np.float32, shape=(-1,))],
    outputs=[Tensor(name="y", dtype=np.float32, shape=(-1,))],
    config=ModelConfig(max_batch_size=8),
)
@batch
def linear(x):
    return {"y": 2 * x + 1}
"""


def main() -> None:
    """Run the command line."""
    # Python 3.9 starts commands with fork(2), where gRPC's handlers can terminate the child before it execs.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    folder, what = Path(sys.argv[1]), sys.argv[2]
    command = str(Path(sys.executable).with_name("pytriton-daemon"))
    places = ["--runtime-dir", str(folder / "run"), "--state-dir", str(folder / "state")]
    ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
    place = places[:2]
    _run([command, "start", "--detach", *places, *ports])
    try:
        if what == "register":
            (folder / "linear_model.py").write_text(MODEL)
            _run([command, "register", "linear_model:linear", *place], folder)
        status = json.loads(_run([command, "status", "--json", *place]))
        answers = [_query(status["server"][f"{name}_url"]) for name in ("http", "grpc")]
    finally:
        _run([command, "stop", *place])
    report = {
        "version": status["version"],
        "python": ".".join(map(str, sys.version_info[:3])),
        "frontend": Path(status["server"]["binary"]).name,
        "answers": answers,
    }
    print(json.dumps(report))


def _query(url: str) -> list[list[float]]:
    import numpy as np

    from pytriton.client import ModelClient

    with ModelClient(url, "linear") as client:
        answer = client.infer_batch(np.array([[1, 2, 3]], np.float32))
    rows: list[list[float]] = answer["y"].tolist()
    return rows


def _run(command: list[str], folder: Path | None = None) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
