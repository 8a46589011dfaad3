"""System calls and files of the kernel."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pytriton._protocol import linux


def test_a_process_s_name_may_contain_anything(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_bytes(b"7 (a) R 1 (b) S 5 6\n")
    assert linux.stat_fields(stat) == [b"", b"7", b"a) R 1 (b", b"S", b"5", b"6"]


@pytest.mark.parametrize("code", [errno.ESRCH, errno.EINVAL, errno.ENOENT])
@pytest.mark.parametrize("python_has_it", [True, False])
def test_a_process_that_the_kernel_is_removing_has_exited(
    code: int, python_has_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    if not python_has_it:
        monkeypatch.delattr(os, "pidfd_open")
        monkeypatch.setattr(linux, "_syscall", refuse)
    with pytest.raises(ProcessLookupError):
        linux.pidfd_open(1)
