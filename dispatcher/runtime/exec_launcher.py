"""Execute a program that is killed with the dispatcher: python exec_launcher.py PARENT_PID PROGRAM ARGUMENT...

Uses little of the standard library, since every start runs it. Tritonserver has its own launcher, private_shm.py.
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
    if os.getppid() != parent:  # it exited before prctl took effect
        sys.exit("the dispatcher has exited")
    os.execv(program, sys.argv[2:])
