"""Replaces this process by an MLServer of the model."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import work


def main() -> None:
    """Write the settings and replace this process by `mlserver start`."""
    spec = work.spec()
    model = spec["model"]
    folder = Path(spec["folder"]) / "mlserver"
    folder.mkdir()
    settings = {
        "host": "127.0.0.1",
        "http_port": spec["http_port"],
        "grpc_port": spec["grpc_port"],
        "metrics_port": spec["metrics_port"],
        "grpc_max_message_length": 64 << 20,
        # A single instance runs in the server's own process, without a queue.
        "parallel_workers": model["instances"] if model["instances"] > 1 else 0,
        "debug": False,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    served = {
        "name": model["name"],
        "implementation": "mlserver_model.Served",
        "parameters": {"extra": model},
    }
    if model["work"] == "nap":
        served.update(max_batch_size=model["max_batch_size"], max_batch_time=0.005)
    (folder / "model-settings.json").write_text(json.dumps(served))
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    program = str(Path(sys.executable).parent / "mlserver")
    os.execv(program, [program, "start", str(folder)])


if __name__ == "__main__":
    main()
