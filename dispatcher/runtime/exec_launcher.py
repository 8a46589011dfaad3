"""Become another program that dies with the dispatcher: python exec_launcher.py PARENT_PID PROGRAM ARGUMENT...

Standard library only, and little of it: it is a part of each start. Tritonserver has one of its own, private_shm.py.
"""

from __future__ import annotations

import ctypes
import os
import sys

_SIGKILL = 9  # `import signal` takes a third of this program's time
_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    parent, program = int(sys.argv[1]), sys.argv[2]
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(_SIGKILL)) != 0:
        sys.exit("prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it ended before we asked
        sys.exit("the dispatcher is gone")
    os.execv(program, sys.argv[2:])
