"""Which GPUs exist according to files, and which values of CUDA_VISIBLE_DEVICES name missing ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytriton._host import gpus

UUIDS = ("GPU-8f2a0000-1111-2222-3333-444455556666", "GPU-9b0c0000-1111-2222-3333-444455556666")


class Machine:
    """The files of a machine, or of a container on it."""

    def __init__(self, folder: Path) -> None:
        self.dev, self.driver, self.slices = (folder / one for one in ("dev", "gpus", "caps"))
        self.dev.mkdir()
        for name in ("null", "nvidiactl", "nvidia-uvm"):
            self.dev.joinpath(name).touch()

    def files(self, *numbers: int) -> None:
        for number in numbers:
            self.dev.joinpath(f"nvidia{number}").touch()

    def driver_shows(self, *uuids: str) -> None:
        for number, uuid in enumerate(uuids):
            folder = self.driver / f"0000:0{number}:00.0"
            folder.mkdir(parents=True)
            text = f"Model: \t\t Some GPU\nGPU UUID: \t {uuid}\nDevice Minor: \t {number}\n"
            folder.joinpath("information").write_text(text)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    monkeypatch.setattr(gpus, "_DEVICES", machine.dev)
    monkeypatch.setattr(gpus, "_DRIVER", machine.driver)
    monkeypatch.setattr(gpus, "_SLICES", machine.slices)
    monkeypatch.delenv(gpus.VARIABLE, raising=False)
    return machine


@pytest.mark.parametrize("device", ["0", "1,2", "GPU-8f2", "MIG-8f2"])
def test_without_gpus(machine: Machine, device: str) -> None:
    why = gpus.missing(device)
    assert why is not None
    assert why.startswith(f"{device.partition(',')[0]}: this machine has no GPU for CUDA")
    assert "/dev/nvidia0" in why
    assert gpus.missing("") is None


def test_numbers(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.files(0, 1)
    machine.driver_shows(*UUIDS)
    monkeypatch.setenv(gpus.VARIABLE, "")  # the daemon's own value, not the worker's
    for device in ("0", "1", "0,1", "01"):
        assert gpus.missing(device) is None
    assert gpus.missing("3") == "3: this machine has the GPUs 0 to 1"
    assert gpus.missing("0,2") == "2: this machine has the GPUs 0 to 1"
    said = gpus.missing("9" * 5000)
    assert said is not None
    assert len(said) < 150


def test_a_container_with_only_the_machines_last_gpu(machine: Machine) -> None:
    machine.files(1)
    machine.driver_shows(*UUIDS)
    assert gpus.visible() == ["0"]
    assert gpus.missing("0") is None
    assert gpus.missing("1") == "1: this machine has only GPU 0"


def test_a_container_without_the_drivers_folder(machine: Machine) -> None:
    machine.files(2, 5)
    assert gpus.missing("1") is None
    assert gpus.missing("2") == "2: this machine has the GPUs 0 to 1"
    assert gpus.missing("GPU-of-any-name") is None


def test_uuids(machine: Machine) -> None:
    machine.files(0, 1)
    machine.driver_shows(*UUIDS)
    for device in (UUIDS[1], "GPU-8f2a", "GPU-8F2A", "MIG-8f2a"):
        assert gpus.missing(device) is None
    assert gpus.missing(f"{UUIDS[0]},GPU-7") == f"GPU-7: this machine has {', '.join(UUIDS)}"


def test_uuids_not_yet_known_to_the_driver(machine: Machine) -> None:
    machine.files(0)
    machine.driver_shows("GPU-????????-????-????-????-????????????")
    assert gpus.missing("GPU-7") is None
    assert gpus.missing("1") is not None


@pytest.mark.parametrize("name", ["dxg", "nvmap", "kfd"])
def test_uncountable_gpus(machine: Machine, name: str) -> None:
    machine.dev.joinpath(name).touch()
    assert gpus.missing("3") is None


def test_a_gpu_split_by_mig(machine: Machine) -> None:
    machine.files(0)
    machine.driver_shows(UUIDS[0])
    machine.slices.joinpath("mig").mkdir(parents=True)  # always there
    assert gpus.missing("1") is not None
    machine.slices.joinpath("gpu0", "mig", "gi1").mkdir(parents=True)
    assert gpus.missing("1") is None


def test_device_files_created_by_the_first_use_of_cuda(machine: Machine) -> None:
    machine.driver_shows(*UUIDS)
    assert gpus.missing("3") is None
