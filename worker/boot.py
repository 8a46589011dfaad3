# ruff: noqa: I002 (no Python before 3.7 has annotations to import)
"""The first file that a worker's interpreter runs: puts the daemon's pytriton on the search path, then runs the worker.

Usage: python boot.py LIBRARY ENDPOINT WORKER PARENT_PID STATS_FD

The interpreter may be any Python 3.9+ of any environment, with or without pytriton installed. LIBRARY is a folder of the
daemon that contains only `pytriton`, so the worker always speaks the daemon's protocol. The other packages (numpy,
pyzmq, msgspec, cloudpickle) come from the interpreter's environment. If WORKER is "(forks workers)", the process is a
fork server (fork_server.py), and STATS_FD is its connection to the dispatcher.

Even Python 2.7 must be able to run this file up to the version check: no annotations, no f-strings.
"""

import sys

if sys.version_info < (3, 9):  # noqa: UP036 (a user's python= may be any)
    sys.stderr.write(
        "%s is Python %s: a worker needs 3.9 or newer\n"  # noqa: UP031
        % (sys.executable, sys.version.split()[0])
    )
    sys.exit(1)

if __name__ == "__main__":
    sys.path[0] = sys.argv[1]  # replaces this file's folder, whose modules would shadow the user's
    from pytriton.worker.startup import main

    sys.exit(main())
