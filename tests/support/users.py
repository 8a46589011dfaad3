"""Run scripts as other users of this machine, for tests that run as root."""

from __future__ import annotations

import grp
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can run a script as another user"
)
#: An unprivileged user.
NOBODY = 65534

# All is imported before the ids change: the interpreter may lie where others must not read.
_HEAD = """
import os, sys
import zmq, msgspec, psutil, pytriton
from pytriton.daemon import connect
from pytriton.exceptions import DaemonNotRunningError
from pytriton._protocol import control, errors, messages
from pytriton._protocol.files.rundir import RuntimeDir
uid, *groups = map(int, sys.argv[2].split(","))
os.setgroups(groups)
os.setgid(uid)
os.setuid(uid)
folder = sys.argv[1]
"""


def run_as(
    uid: int, code: str, folder: object, groups: Sequence[int] = ()
) -> subprocess.CompletedProcess[str]:
    """Run Python code as a user; it finds `folder` under that name, and the names imported above."""
    ids = ",".join(map(str, (uid, *groups)))
    return subprocess.run(
        [sys.executable, "-c", _HEAD + code, str(folder), ids],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def some_group() -> grp.struct_group:
    """Return a group of this machine other than root's."""
    return next(group for group in grp.getgrall() if group.gr_gid not in (0, NOBODY))
