"""Programs that die with the process that started them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from pytriton.dispatcher.runtime import exec_launcher
from pytriton.dispatcher.server import private_shm

pytestmark = pytest.mark.parametrize(
    "launcher", [exec_launcher.__file__, private_shm.__file__], ids=["any", "tritonserver"]
)


def test_the_launcher_executes_the_program_with_its_arguments(launcher: str) -> None:
    command = [sys.executable, "-I", launcher, str(os.getpid()), "/bin/echo", "one", "two words"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "one two words\n"


def test_the_launcher_starts_nothing_if_its_parent_has_exited(launcher: str) -> None:
    command = [sys.executable, "-I", launcher, str(os.getpid() + 1), "/bin/echo", "one"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "the dispatcher has exited" in done.stderr


def test_the_program_dies_with_its_parent(launcher: str) -> None:
    parent = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-I', sys.argv[1], str(os.getpid()), '/bin/cat'],\n"
        "                         stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent, launcher],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        descriptor = os.pidfd_open(pid)
        process.send_signal(signal.SIGKILL)
    # Readable when it has exited, for which only its parent's pipe is a reason: it got no signal from us.
    assert select.select([descriptor], [], [], 30)[0]
    os.close(descriptor)
