"""A fork whose parent is the parent of the process that forks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: The identifier of a thread's CPU clock contains the thread id as the C library knows it.
_FORK = """
import os, threading, time
from pytriton._protocol.fork_protocol import Forker, join_helpers
def tid_of_c_library():
    return ~(time.pthread_getcpuclockid(threading.get_ident()) >> 3)
join_helpers()
who = "fork" if Forker().fork() == 0 else "server"
threads = [tid_of_c_library()]
another = threading.Thread(target=lambda: threads.append(tid_of_c_library() - threading.get_native_id()))
another.start()
another.join()
os.write(1, f"{who} {os.getpid()} {os.getppid()} {threads}\\n".encode())
"""


@pytest.mark.programs
def test_the_c_library_knows_the_thread_id_in_a_fork() -> None:
    """The server is a new program, not a fork: only there does glibc 2.43 pass another address to the kernel."""
    server = subprocess.run([sys.executable, "-c", _FORK], stdout=subprocess.PIPE, check=True)
    lines = [line.split(maxsplit=1) for line in server.stdout.decode().splitlines()]
    reports = dict(lines)
    assert sorted(reports) == ["fork", "server"]
    forked = int(reports["fork"].split()[0])
    os.waitpid(forked, 0)  # it is a child of this process
    for line in reports.values():
        pid = int(line.split()[0])
        assert line == f"{pid} {os.getpid()} [{pid}, 0]"
