"""The `devices` option: refused for missing GPUs, and otherwise one variable per instance."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from fakes.fake_worker import SPEC

from pytriton._host import gpus
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.models.admission import check_devices
from pytriton.dispatcher.workers import worker_process


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("_DRIVER", "_SLICES"):
        monkeypatch.setattr(gpus, variable, tmp_path / "none")
    monkeypatch.setattr(gpus, "_DEVICES", tmp_path)
    (tmp_path / "nvidia0").touch()


@pytest.mark.usefixtures("one_gpu")
def test_a_registration_for_a_missing_gpu_is_refused() -> None:
    check_devices(msgspec.structs.replace(SPEC, instances=4, devices=["0", "", None, "0"]))
    with pytest.raises(RemoteFailure) as caught:
        check_devices(msgspec.structs.replace(SPEC, instances=2, devices=["", "0,3"]))
    assert caught.value.text == (
        'model m: devices= contains GPU 3: this machine has only GPU 0; leave devices out, or set it to "cpu"'
    )


def test_each_instance_has_its_own_device_and_standby_workers_use_them_in_turn() -> None:
    world = msgspec.structs.replace(SPEC.world, env={"CUDA_VISIBLE_DEVICES": "7"})
    devices = ["0", "1,2", "", None]
    spec = msgspec.structs.replace(
        SPEC, world=world, instances=4, standby_workers=1, devices=devices
    )
    environments = [{**world.env, **worker_process._device(spec, at)} for at in range(5)]
    seen = [env["CUDA_VISIBLE_DEVICES"] for env in environments]
    assert seen == ["0", "1,2", "", "7", "0"]


def test_numbers_are_those_of_nvidia_smi_unless_the_user_has_chosen_an_order() -> None:
    spec = msgspec.structs.replace(SPEC, devices=["1", None])
    order = [worker_process._device(spec, at).get("CUDA_DEVICE_ORDER") for at in range(2)]
    assert order == ["PCI_BUS_ID", None]
    world = msgspec.structs.replace(SPEC.world, env={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
    chosen = msgspec.structs.replace(spec, world=world)
    assert worker_process._device(chosen, 0)["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"
