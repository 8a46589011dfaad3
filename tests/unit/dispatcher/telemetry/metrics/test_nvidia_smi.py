"""The GPUs that nvidia-smi tells of, where a script has its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytriton.dispatcher.telemetry.metrics.gpu_memory import Gpu, gpus


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which programs are looked for."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def install(path: Path, script: str) -> None:
    program = path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_gpus_are_reported_with_their_memory_in_bytes(path: Path) -> None:
    install(path, "echo '0, GPU-aa, 81559'; echo '1, GPU-bb, 4'")
    assert gpus() == [Gpu("0", "GPU-aa", 81559 << 20), Gpu("1", "GPU-bb", 4 << 20)]


def test_lines_that_tell_no_memory_are_left_out(path: Path) -> None:
    install(path, "echo 'a warning'; echo '0, GPU-aa, [N/A]'; echo '1, GPU-bb, 4'")
    assert gpus() == [Gpu("1", "GPU-bb", 4 << 20)]


def test_without_nvidia_smi_there_are_none(path: Path) -> None:
    assert gpus() == []


def test_where_it_fails_there_are_none(path: Path) -> None:
    install(path, "echo '0, GPU-aa, 4'; exit 9")
    assert gpus() == []
