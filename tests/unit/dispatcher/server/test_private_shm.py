"""The filter that keeps tritonserver's shared memory private: it changes only fchmod(FD, 0644)."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pytriton.dispatcher.server import private_shm
from pytriton.dispatcher.server.frontend import privately

#: Creates a file as boost.interprocess does a region, then one with another mode.
_PROGRAM = """
import os, sys
os.umask(0o077)
one = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o644)
os.fchmod(one, 0o644)
os.write(one, b"written")
other = os.open(sys.argv[2], os.O_CREAT | os.O_RDWR, 0o644)
os.fchmod(other, 0o640)
os.chmod(sys.argv[3], 0o644)
"""


#: Starts a program as tritonserver is, under a filter that kills callers of seccomp(): SystemCallFilter=@system-service.
_FILTERED = """
import ctypes, os, struct, subprocess, sys
from pytriton.dispatcher.server.frontend import privately
from pytriton.dispatcher.server.private_shm import _NUMBERS, _Program
_, _, seccomp = _NUMBERS[os.uname().machine]
lines = ((0x20, 0, 0, 0), (0x15, 0, 1, seccomp), (0x06, 0, 0, 0x80000000), (0x06, 0, 0, 0x7FFF0000))
code = b"".join(struct.pack("=HBBI", *line) for line in lines)
program = _Program(len(code) // 8, code)
libc = ctypes.CDLL(None, use_errno=True)
one, zero = ctypes.c_ulong(1), ctypes.c_ulong(0)
assert libc.prctl(38, one, zero, zero, zero) == 0
assert libc.prctl(22, ctypes.c_ulong(2), ctypes.byref(program), zero, zero) == 0
sys.exit(subprocess.run(privately([sys.executable, *sys.argv[1:]])).returncode)
"""


@pytest.mark.parametrize("filtered", [False, True])
def test_only_a_world_readable_fchmod_is_skipped(tmp_path: Path, filtered: bool) -> None:
    """Also below a service manager's filter, which may kill callers of seccomp() but allows prctl()."""
    region, other, third = (tmp_path / name for name in ("region", "other", "third"))
    third.touch(0o600)
    program = ["-c", _PROGRAM, *map(str, (region, other, third))]
    own = [sys.executable, "-c", _FILTERED, *program]
    command = own if filtered else privately([sys.executable, *program])
    done = subprocess.run(command, check=True, capture_output=True)
    assert done.stderr == b""  # the kernel took the filter
    modes = [stat.S_IMODE(os.stat(path).st_mode) for path in (region, other, third)]
    assert modes == [0o600, 0o640, 0o644]
    assert region.read_bytes() == b"written"


def test_without_filters_the_program_still_runs(tmp_path: Path) -> None:
    """On some machines or kernels; the reason is reported."""
    source = Path(private_shm.__file__).read_text().replace("os.uname().machine", "'vax'")
    launcher = tmp_path / "launcher.py"
    launcher.write_text(source)
    command = privately([sys.executable, "-c", "print('ran')"])
    command[command.index(private_shm.__file__)] = str(launcher)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "ran\n"
    assert "system call numbers are not known for vax" in done.stderr


def test_the_bytes_of_the_filter() -> None:
    """Written by hand for one architecture: struct sock_filter is two bytes code, one jt, one jf, four k."""
    code = private_shm.filter_of(0xC000003E, 91)
    assert code.hex(" ", 8) == " ".join(
        [
            "2000000004000000",  # load the machine
            "150000053e0000c0",  # x86_64? else allow
            "2000000000000000",  # load the number of the call
            "150000035b000000",  # fchmod? else allow
            "2000000018000000",  # load the mode
            "15000001a4010000",  # 0644? else allow
            "0600000000000500",  # return 0
            "060000000000ff7f",  # allow
        ]
    )


def test_the_program_may_open_as_many_files_as_the_user_may() -> None:
    code = "import resource; soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE); print(soft == hard > 64)"
    command = privately([sys.executable, "-c", code])
    lowered = ["sh", "-c", 'ulimit -S -n 64; exec "$@"', "sh", *command]
    done = subprocess.run(lowered, check=True, capture_output=True, text=True)
    assert done.stdout == "True\n"
