"""Replaces this process by a BentoML server of the model."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import work


def main() -> None:
    """Start `bentoml serve`. An environment variable describes the model."""
    spec = work.spec()
    service = {"typed": "Typed", "model": "Model"}.get(spec["model"]["work"], "Raw")
    os.environ["BENCH_MODEL"] = json.dumps(spec["model"])
    os.environ["BENTOML_DO_NOT_TRACK"] = "True"
    os.environ["BENTOML_HOME"] = f"{spec['folder']}/bentoml"
    arguments = ["-m", "bentoml", "serve", f"bentoml_model:{service}", "--host", "127.0.0.1"]
    arguments += ["--port", str(spec["http_port"]), "--working-dir", str(Path(__file__).parent)]
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    main()
