"""Boot a Debian 12 with a real systemd 252 and this checkout in its own namespaces (systemd-nspawn).

debootstrap creates the tree once, and it is kept in the tests' cache. It is read-only: a machine writes to an overlay in
memory, which disappears with it. These tests run only with `PYTRITON_SYSTEMD_TESTS=1`: they take some minutes, need
root, and download 60 MB from Debian the first time.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from support.file_cache import cache_folder
from support.real_daemon import eventually

ASKED = "PYTRITON_SYSTEMD_TESTS"
ROOT = Path(__file__).parents[3]
#: The unprivileged user in the machine.
USER = "svc"
#: The program of this checkout, under the same path in the machine.
PROGRAM = Path(sys.executable).with_name("pytriton-daemon")
_PACKAGES = "systemd,systemd-sysv,dbus,libpam-systemd,dbus-user-session,procps,iproute2,python3"
_BOOT_S, _COMMAND_S = 120.0, 120.0
_CGROUPS = Path("/sys/fs/cgroup")
_numbers = itertools.count(1)


def why_not() -> str:
    """Return why no machine can be booted here; "" if one can."""
    if not os.environ.get(ASKED):
        return f"takes minutes: {ASKED}=1 has it run"
    if os.geteuid() != 0:
        return "only root can boot a machine"
    lacking = [name for name in ("systemd-nspawn", "nsenter", "unshare") if not shutil.which(name)]
    if not _tree().exists() and not shutil.which("debootstrap"):
        lacking.append("debootstrap")
    if lacking:
        return f"there is no {', '.join(lacking)} (Debian: systemd-container, debootstrap)"
    return ""


def _tree() -> Path:
    return cache_folder() / "debian-12"


def _made_tree() -> Path:
    tree = _tree()
    if tree.exists():
        return tree
    unfinished = tree.with_name(f"{tree.name}.{os.getpid()}")
    command = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm"]
    try:
        made = subprocess.run(
            [*command, str(unfinished)], check=False, capture_output=True, text=True
        )
        if made.returncode != 0:
            pytest.skip(f"debootstrap cannot make a Debian here: {made.stdout[-500:]}")
        with contextlib.suppress(OSError):  # another process was faster
            unfinished.rename(tree)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return tree


class Machine:
    """A booted machine.

    Args:
        leader: the process of its systemd
    """

    def __init__(self, leader: int) -> None:
        self.leader = leader

    def run(
        self, *command: str, check: bool = True, user: str = "", timeout_s: float = _COMMAND_S
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the machine, as root or in a login shell of `user`."""
        if user:
            command = ("su", "--login", user, "--command", " ".join(command))
        done = subprocess.run(
            [*self._enter(), *command],
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )
        if check and done.returncode != 0:
            last = self.journal("--lines=40")
            said = f"{done.stdout}{done.stderr}\n{last}"
            raise AssertionError(f"{command} ended with {done.returncode}: {said}")
        return done

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start a command in the machine, with pipes."""
        return subprocess.Popen(
            [*self._enter(), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )

    def _enter(self) -> list[str]:
        spaces = ("--mount", "--uts", "--ipc", "--net", "--pid")
        return ["nsenter", f"--target={self.leader}", *spaces, "--"]

    def systemctl(self, *arguments: str, check: bool = True) -> str:
        return self.run("systemctl", *arguments, check=check).stdout

    def show(self, name: str, unit: str = "pytriton-daemon.service") -> str:
        """Return a property of a unit."""
        return self.systemctl("show", "--value", f"--property={name}", unit).strip()

    def journal(self, *arguments: str) -> str:
        command = ["journalctl", "--no-pager", "--unit=pytriton-daemon", *arguments]
        return subprocess.run(
            [*self._enter(), *command], check=False, capture_output=True, text=True
        ).stdout

    def write(self, path: str, text: str) -> None:
        """Write a file in the machine."""
        target = Path(f"/proc/{self.leader}/root{path}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


@contextlib.contextmanager
def booted(binds: Mapping[Path, str] = {}) -> Iterator[Machine]:
    """Boot a machine with this checkout and its interpreter at the same paths, and folders at others.

    It has its own loopback network, so ports are free.
    """
    name = f"ptd-{os.getpid()}-{next(_numbers)}"
    places = {ROOT, Path(sys.base_prefix)}
    command = [
        *("unshare", "--mount", "--propagation=private", "systemd-nspawn"),
        *("--boot", "--register=no", "--keep-unit", "--volatile=overlay", "--private-network"),
        *("--link-journal=no", "--console=read-only", "--quiet", f"--machine={name}"),
        f"--directory={_made_tree()}",
        *(f"--bind-ro={place}" for place in sorted(places)),
        *(f"--bind-ro={place}:{there}" for place, there in binds.items()),
    ]
    with _cgroups(name) as join:
        nspawn = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=join,
        )
        try:
            machine = Machine(_leader(nspawn))
            _open_home_to_users(machine, places)
            machine.run("useradd", "--create-home", "--shell=/bin/bash", USER)
            machine.run("systemctl", "is-system-running", "--wait", check=False, timeout_s=_BOOT_S)
            yield machine
        finally:
            for child in psutil.Process(nspawn.pid).children():
                child.send_signal(
                    signal.SIGKILL
                )  # the kernel then kills all processes in its namespace
            nspawn.communicate(timeout=_BOOT_S)
            for left in ("propagate", "unix-export"):
                with contextlib.suppress(OSError):
                    os.rmdir(f"/run/systemd/nspawn/{left}/{name}")


def _leader(nspawn: subprocess.Popen[bytes]) -> int:
    def leader() -> int | None:
        if nspawn.poll() is not None:
            assert nspawn.stdout is not None  # a pipe
            pytest.fail(f"systemd-nspawn ended: {nspawn.stdout.read().decode()}")
        for child in psutil.Process(nspawn.pid).children():
            if child.name() == "systemd":
                return child.pid
        return None

    found: int = eventually(leader, lambda: "systemd-nspawn starts no systemd")
    done = ["nsenter", f"--target={found}", "--mount", "--pid", "--", "systemctl", "list-units"]

    def answers() -> bool:
        return subprocess.run(done, check=False, capture_output=True).returncode == 0

    eventually(answers, lambda: "its systemd does not answer")
    return found


def _open_home_to_users(machine: Machine, places: set[Path]) -> None:
    """Let users reach what lies in root's home."""
    parents = {str(parent) for place in places for parent in place.parents if parent != Path("/")}
    if parents:
        machine.run("chmod", "a+x", *sorted(parents))


@contextlib.contextmanager
def _cgroups(name: str) -> Iterator[Callable[[], None]]:
    """Yield a function that moves a process into new control groups, in each hierarchy that systemd uses."""
    hybrid = [_CGROUPS / "systemd", _CGROUPS / "unified"]
    roots = [root for root in hybrid if root.is_dir()] or [_CGROUPS]
    folders = [root / name for root in roots]
    for folder in folders:
        folder.mkdir()

    def join() -> None:
        for folder in folders:
            (folder / "cgroup.procs").write_text(str(os.getpid()))

    try:
        yield join
    finally:
        for folder in folders:
            for path, _, _ in os.walk(folder, topdown=False):
                os.rmdir(path)
