"""Serves the model with gunicorn: HTTP workers, and the model in workers of the dirty arbiter."""

from __future__ import annotations

import json
import os
import sys

import work

HTTP_WORKERS = 2
THREADS = 32


def main() -> None:
    """Replace this process by gunicorn. An environment variable describes the model."""
    spec = work.spec()
    os.environ["BENCH_MODEL"] = json.dumps(spec["model"])
    here = os.path.dirname(os.path.abspath(__file__))
    command = [sys.executable, "-m", "gunicorn", "gunicorn_model:application"]
    command += ["--bind", f"127.0.0.1:{spec['http_port']}", "--chdir", here]
    command += ["--worker-class", "gthread", "--workers", str(HTTP_WORKERS)]
    command += ["--threads", str(THREADS), "--keep-alive", "60", "--backlog", "2048"]
    command += ["--dirty-app", "gunicorn_model:Deployed"]
    command += ["--dirty-workers", str(spec["model"]["instances"])]
    command += ["--log-level", "warning", "--no-control-socket"]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    main()
