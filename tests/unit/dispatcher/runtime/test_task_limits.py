"""How many more tasks may be started, read from trees of kernel files."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from pytriton.dispatcher.runtime.task_limits import Headroom, headroom

#: A pid of this process, and the user that its files belong to.
PID = os.getpid()


class Kernel:
    """The kernel's files about tasks and their limits."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.cgroups = folder / "proc", folder / "cgroup"
        self.put("proc/loadavg", "0.1 0.2 0.3 2/150 4711")
        self.put("proc/sys/kernel/threads-max", "1000")
        self.put("proc/sys/kernel/pid_max", "2000")
        self.put(f"proc/{PID}/cgroup", "0::/")

    def put(self, path: str, text: str) -> None:
        file = self.proc.parent / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def group(self, path: str, most: str, now: int) -> None:
        self.put(f"cgroup/{path}/pids.max", most)
        self.put(f"cgroup/{path}/pids.current", str(now))

    def headroom(self) -> Headroom | None:
        return headroom(PID, self.proc, self.cgroups)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "prlimit", lambda pid, limit: unlimited)
    return Kernel(tmp_path)


def test_the_kernels_limits_apply_to_every_process(kernel: Kernel) -> None:
    assert kernel.headroom() == (850, "kernel.threads-max is 1000")
    kernel.put("proc/sys/kernel/pid_max", "200")
    assert kernel.headroom() == (50, "kernel.pid_max is 200")


def test_the_tightest_limit_of_a_control_group_and_its_ancestors_applies(kernel: Kernel) -> None:
    kernel.put(f"proc/{PID}/cgroup", "0::/system.slice/d.service")
    kernel.group("system.slice", "max", 90)
    kernel.group("system.slice/d.service", "60", 50)
    assert kernel.headroom() == (10, "pids.max of control group /system.slice/d.service is 60")
    kernel.group("system.slice", "95", 90)
    assert kernel.headroom() == (5, "pids.max of control group /system.slice is 95")


@pytest.mark.parametrize("mount", ["pids", "unified"])
def test_control_groups_of_both_kinds_count(kernel: Kernel, mount: str) -> None:
    lines = ["9:name=systemd:/x", "8:cpu,pids:/a", "0::/a"]
    kernel.put(f"proc/{PID}/cgroup", "\n".join(lines))
    kernel.group(f"{mount}/a", "7", 4)
    assert kernel.headroom() == (3, "pids.max of control group /a is 7")


def test_a_user_s_limit_counts_the_tasks_of_all_its_processes(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = "S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 {} 0 4711"
    kernel.put(f"proc/{PID}/stat", f"{PID} (a) b) {fields.format(30)}")
    kernel.put("proc/999999/stat", f"999999 (other) {fields.format(12)}")
    kernel.put("proc/net/stat", "no process")
    monkeypatch.setattr(resource, "prlimit", lambda pid, limit: (50, 60))
    found = kernel.headroom()
    user = (kernel.proc / str(PID)).stat().st_uid
    if user == 0:  # to whom the limit does not apply
        assert found == (850, "kernel.threads-max is 1000")
        os.chown(kernel.proc / str(PID), 4000, 4000)
        os.chown(kernel.proc / "999999", 4000, 4000)
        user, found = 4000, kernel.headroom()
    assert found == (8, f"the limit of processes of user {user} (ulimit -u) is 50")


def test_no_readable_limit_means_no_limit(tmp_path: Path) -> None:
    assert headroom(PID, tmp_path / "none", tmp_path / "none") is None
