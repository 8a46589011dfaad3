"""Run tritonserver with private shared memory: python private_shm.py PARENT_PID PROGRAM ARGUMENT...

The regions that tritonserver creates in /dev/shm hold every tensor on its way to a worker. The daemon sets a umask of
077, but the library behind them (boost.interprocess) sets 0644 with fchmod right after, and the proxy's chmod to 0600
comes a few hundred milliseconds later: a user who opened the region in between could read from it for its whole
lifetime. So a system call filter (seccomp) turns fchmod(FD, 0644) into a no-op that succeeds, in this program and its
descendants.

If the kernel refuses the filter, the program runs without it and prints a warning.

The soft limit of open files is raised to the hard limit: tritonserver needs a descriptor per connection, and its
compiled proxies one per lane and call. The usual soft limit of 1024 exists for programs that use select(2).

The program is killed when the dispatcher dies, as with exec_launcher.py. That launcher is not used here, because one
more interpreter would add tens of milliseconds to every start.

Source: seccomp(2), prctl(2) PR_SET_NO_NEW_PRIVS (which an unprivileged filter needs), linux/filter.h and
linux/seccomp.h. Uses only a little of the standard library, because it runs before every start of tritonserver.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys

_SIGKILL = 9  # `import signal` takes a third of this program's time
_PR_SET_PDEATHSIG = 1
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_SECCOMP_SET_MODE_FILTER = 1
#: Keeps speculative execution enabled, which older kernels disable for filtered programs.
_SECCOMP_FILTER_FLAG_SPEC_ALLOW = 1 << 2
_RETURN_ALLOW, _RETURN_ZERO = 0x7FFF0000, 0x00050000
#: Machine -> its audit architecture and the numbers of the system calls fchmod and seccomp.
_NUMBERS = {"x86_64": (0xC000003E, 91, 317), "aarch64": (0xC00000B7, 52, 277)}
_WORLD_READABLE = 0o644
# Offsets in struct seccomp_data: call number, machine, lower half of the second argument.
_CALL, _MACHINE, _ARGUMENT_2 = 0, 4, 24
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def filter_of(machine: int, fchmod: int) -> bytes:
    """Return the BPF program of the filter. Each failed test jumps to the program's last instruction, which allows
    the call.
    """
    lines = (
        (_LOAD, 0, 0, _MACHINE),
        (_EQUAL, 0, 5, machine),
        (_LOAD, 0, 0, _CALL),
        (_EQUAL, 0, 3, fchmod),
        (_LOAD, 0, 0, _ARGUMENT_2),
        (_EQUAL, 0, 1, _WORLD_READABLE),
        (_RETURN, 0, 0, _RETURN_ZERO),
        (_RETURN, 0, 0, _RETURN_ALLOW),
    )
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def install() -> None:
    """Install the filter for this process and its descendants.

    Raises:
        OSError: the kernel refused, or this machine's system call numbers are unknown
    """
    name = os.uname().machine
    if name not in _NUMBERS:
        raise OSError(f"system call numbers are not known for {name}")
    machine, fchmod, seccomp = _NUMBERS[name]
    libc = ctypes.CDLL(None, use_errno=True)
    code = filter_of(machine, fchmod)
    program = _Program(len(code) // 8, code)
    one, zero = ctypes.c_ulong(1), ctypes.c_ulong(0)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, one, zero, zero, zero) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
    if _is_filtered():
        # A filter exists already, such as a service manager's SystemCallFilter=, which may kill a process that calls
        # seccomp(). Use prctl() instead.
        mode = ctypes.c_ulong(_SECCOMP_MODE_FILTER)
        if libc.prctl(_PR_SET_SECCOMP, mode, ctypes.byref(program), zero, zero) != 0:
            raise OSError(ctypes.get_errno(), f"prctl: {os.strerror(ctypes.get_errno())}")
        return
    flags = ctypes.c_ulong(_SECCOMP_FILTER_FLAG_SPEC_ALLOW)
    operation = ctypes.c_ulong(_SECCOMP_SET_MODE_FILTER)
    if libc.syscall(ctypes.c_long(seccomp), operation, flags, ctypes.byref(program)) != 0:
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")


def _is_filtered() -> bool:
    """Return whether a filter for system calls is already installed in this process."""
    with open("/proc/self/status", "rb") as status:
        return b"\nSeccomp:\t2\n" in status.read()


if __name__ == "__main__":
    parent, program = int(sys.argv[1]), sys.argv[2]
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(_SIGKILL)) != 0:
        sys.exit("prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it exited before prctl()
        sys.exit("the dispatcher has exited")
    try:
        install()
    except OSError as error:
        sys.stderr.write(
            "tritonserver's shared memory is readable by other users until the proxy has made it "
            f"private, shortly after its creation ({error})\n"
        )
        sys.stderr.flush()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    preload = os.environ.pop("PYTRITON_PRELOAD", None)
    if preload is not None:  # for tritonserver only
        os.environ["LD_PRELOAD"] = preload
    os.execv(program, sys.argv[2:])
