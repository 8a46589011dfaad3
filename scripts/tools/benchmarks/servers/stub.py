"""Replaces this process by the tritonserver that our daemon uses, with the model's code in a model.py."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import work

from pytriton._host.install.server_runtime import (
    ServerChoice,
    find_or_install_server,
    server_environment,
)

HERE = Path(__file__).parent


def config_text(model: dict[str, Any]) -> str:
    """Return config.pbtxt of the model."""
    dtype = {"FP32": "TYPE_FP32", "BYTES": "TYPE_STRING"}[model["dtype"]]
    lines = [f'backend: "python" max_batch_size: {model["max_batch_size"]}']
    for side, name in (("input", "x"), ("output", "y")):
        lines.append(f'{side} [ {{ name: "{name}" data_type: {dtype} dims: [ -1 ] }} ]')
    lines.append(f"instance_group [ {{ kind: KIND_CPU count: {model['instances']} }} ]")
    if model["max_batch_size"]:
        lines.append("dynamic_batching { }")
    if model["decoupled"]:
        lines.append("model_transaction_policy { decoupled: true }")
    text = json.dumps(json.dumps(model))  # protobuf's text format quotes strings as JSON does
    lines.append(f'parameters {{ key: "model" value {{ string_value: {text} }} }}')
    return "\n".join(lines)


def lay_out(folder: Path, model: dict[str, Any]) -> Path:
    """Write a model repository. Return its path."""
    if model["folder"]:
        shutil.copytree(model["folder"], folder / "models" / model["name"])
        return folder / "models"
    version = folder / "models" / model["name"] / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(config_text(model))
    shutil.copy(HERE / "stub_model.py", version / "model.py")
    shutil.copy(HERE / "work.py", version / "work.py")
    return folder / "models"


def main() -> None:
    """Replace this process by tritonserver."""
    spec = work.spec()
    folder = Path(spec["folder"])
    runtime = find_or_install_server(ServerChoice(python_backend=True), print)
    assert runtime.python is not None
    backends = folder / "backends"
    backends.mkdir()
    # Not the wheel's own folder: its stub may be for another version of Python.
    (backends / "python").symlink_to(runtime.python.folder)
    arguments = [
        f"--model-repository={lay_out(folder, spec['model'])}",
        f"--backend-directory={backends}",
        "--disable-auto-complete-config",
        f"--backend-config=python,shm-region-prefix-name=bench-{os.getpid()}-",
    ]
    for name in ("http", "grpc", "metrics"):
        arguments += [f"--{name}-address=127.0.0.1", f"--{name}-port={spec[f'{name}_port']}"]
    env = server_environment(runtime, os.environ, runtime.python.environment.root)
    os.chdir(folder)
    os.execve(runtime.tree.program, [str(runtime.tree.program), *arguments], env)


if __name__ == "__main__":
    main()
