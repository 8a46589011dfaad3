# ruff: noqa: I002 (no Python before 3.7 has annotations to import)
"""First file a worker's interpreter runs: puts this version of pytriton on its path, then becomes the worker.

Usage: python boot.py LIBRARY ENDPOINT WORKER PARENT_PID STATS_FD

The interpreter may be any Python 3.9+ of any environment, with or without pytriton installed:
LIBRARY is a folder of the daemon that holds nothing but `pytriton`, so the worker always speaks the
daemon's protocol. Its other dependencies (numpy, pyzmq, msgspec, cloudpickle) come from its own
environment. If WORKER is "(forks workers)", this is a fork server (fork_server.py), and STATS_FD its
connection to the dispatcher.

This file must run far enough in any Python, even 2.7, to report that it is too old: no annotations, no f-strings.
"""

import sys

if sys.version_info < (3, 9):  # noqa: UP036 (a user's python= may be any)
    sys.stderr.write(
        "%s is Python %s: a worker needs 3.9 or newer\n"  # noqa: UP031
        % (sys.executable, sys.version.split()[0])
    )
    sys.exit(1)

if __name__ == "__main__":
    sys.path[0] = sys.argv[1]  # was this file's own folder, whose modules must not shadow a user's
    from pytriton.worker.startup import main

    sys.exit(main())
