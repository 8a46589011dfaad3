"""Second step of a worker's start, after boot.py: checks that packages are installed, then runs a worker or fork server."""

from __future__ import annotations

import gc
import os
import sys

#: pip's name -> import name of the packages that a worker needs in its environment.
NEEDED = {"numpy": "numpy", "pyzmq": "zmq", "msgspec": "msgspec", "cloudpickle": "cloudpickle"}


def main() -> int:
    """Run this process as a worker or a fork server; return the exit code."""
    gc.disable()  # until the imports are done: a collection would find no garbage
    _, endpoint, worker, parent_pid, stats_fd = sys.argv[1:6]
    packages = os.environ.pop("PYTRITON_WORKER_PACKAGES", None)
    if packages:  # a folder with the packages that this environment lacks
        sys.path.append(packages)
    missing = [name for name, module in NEEDED.items() if not _importable(module)]
    if missing:
        print(
            f"{sys.executable} cannot run a worker: it lacks {', '.join(missing)}. "
            f"Install into that environment: {sys.executable} -m pip install {' '.join(missing)}",
            file=sys.stderr,
        )
        return 1
    from pytriton._protocol.fork_protocol import FORKS
    from pytriton.worker import fork_server
    from pytriton.worker.process import run
    from pytriton.worker.shutdown import end_in_time

    if worker == FORKS:
        forked = fork_server.serve(int(parent_pid), int(stats_fd))
        if forked is None:
            return 0
        worker, stats_fd = forked[0], str(forked[1])
    gc.enable()
    code = 1
    try:
        code = run(endpoint, worker, int(parent_pid), int(stats_fd))
    except SystemExit as end:  # raised by the callable
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    finally:
        end_in_time(code)
    return code


def _importable(module: str) -> bool:
    try:
        __import__(module)
    except ImportError as error:
        print(f"import {module}: {error}", file=sys.stderr)
        return False
    return True
