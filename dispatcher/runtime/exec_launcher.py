"""Execute a program that the kernel kills when the dispatcher exits.

Usage: python exec_launcher.py PARENT_PID PROGRAM ARGUMENT... Every start of a process runs this file, so it imports
little. tritonserver has its own launcher, private_shm.py.
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
