"""First file a worker's interpreter runs: puts this version of pytriton on its path, then becomes the worker.

Usage: python boot.py LIBRARY ENDPOINT WORKER PARENT_PID GAUGE_FD

The interpreter may be any Python 3.9+ of any environment, with or without pytriton installed:
LIBRARY is a folder of the daemon that holds nothing but `pytriton`, so the worker always speaks the
daemon's protocol. What it needs besides (numpy, pyzmq, msgspec, cloudpickle) comes from its own
environment. Standard library only up to there. Where WORKER is "(forks workers)", this is a fork server
(fork_server.py), and GAUGE_FD its connection with the dispatcher.
"""

from __future__ import annotations

import gc
import os
import sys

#: pip's name -> import name of what a worker needs in its environment.
NEEDED = {"numpy": "numpy", "pyzmq": "zmq", "msgspec": "msgspec", "cloudpickle": "cloudpickle"}


def main() -> int:
    gc.disable()  # until all is imported: it would look for rubbish among modules that stay
    library, endpoint, worker, parent_pid, gauge_fd = sys.argv[1:6]
    if sys.version_info < (3, 9):  # noqa: UP036 (somebody's python= may be any)
        version = sys.version.split()[0]
        print(f"{sys.executable} is Python {version}: a worker needs 3.9 or newer", file=sys.stderr)
        return 1
    sys.path[0] = library  # was this file's own folder, whose modules must not shadow a user's
    packages = os.environ.pop("PYTRITON_WORKER_PACKAGES", None)
    if packages:  # what this environment lacks and somebody has fetched for it
        sys.path.append(packages)
    missing = [name for name, module in NEEDED.items() if not _importable(module)]
    if missing:
        print(
            f"{sys.executable} cannot run a worker, it lacks {', '.join(missing)}. "
            f"Install into that environment: {sys.executable} -m pip install {' '.join(missing)}",
            file=sys.stderr,
        )
        return 1
    from pytriton.ipc.forking import FORKS
    from pytriton.worker import fork_server
    from pytriton.worker.ending import end_in_time
    from pytriton.worker.process import run

    if worker == FORKS:
        forked = fork_server.serve(int(parent_pid), int(gauge_fd))
        if forked is None:
            return 0
        worker, gauge_fd = forked[0], str(forked[1])
    gc.enable()
    code = 1
    try:
        code = run(endpoint, worker, int(parent_pid), int(gauge_fd))
    except SystemExit as end:  # of the callable
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


if __name__ == "__main__":
    sys.exit(main())
