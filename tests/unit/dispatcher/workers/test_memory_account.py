"""Expected memory of a model's workers: declared, measured or estimated, per GPU, and discarded with the model."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fakes.fake_clients import model_spec
from fakes.virtual_time import VirtualLoop

from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.scaling.memory_policy import MEMORY, Size
from pytriton.dispatcher.workers.memory_account import Account, MemoryAccounts

MIB = 1 << 20
LIMITS = {MEMORY: 1000 * MIB, "0": 800 * MIB, "1": 800 * MIB}


def opened(accounts: MemoryAccounts, name: str = "m", **spec: Any) -> Account:
    return accounts.open(model_spec(name, **spec))


def test_estimates_of_all_workers_use_at_most_half_the_budget() -> None:
    accounts = MemoryAccounts(LIMITS)
    assert opened(accounts, instances=1).needs(1) == {MEMORY: 250 * MIB}
    assert opened(accounts, instances=4).needs(4) == {MEMORY: 500 * MIB}
    many = opened(accounts, instances=100)
    assert many.needs(100)[MEMORY] <= 500 * MIB
    many.check(many.spec, 100)  # an estimate refuses no load


def test_declared_and_measured_sizes_are_no_estimates() -> None:
    accounts = MemoryAccounts(LIMITS)
    account = opened(accounts, memory_request=100 * MIB)
    assert account.worker_size == Size(100 * MIB)
    account.record_size(Size(50 * MIB))
    assert account.worker_size == Size(100 * MIB)
    account.record_size(Size(150 * MIB))
    account.granted = 1
    assert account.used == {MEMORY: 150 * MIB}


def test_each_worker_counts_on_its_own_gpus() -> None:
    accounts = MemoryAccounts(LIMITS, {"GPU-a": "0", "GPU-b": "1"})
    devices = ["0", "GPU-b", "0,1", "", None]
    account = opened(
        accounts, instances=5, devices=devices, memory_request=10, gpu_memory_request=100 * MIB
    )
    assert account.needs(5) == {MEMORY: 50, "0": 200 * MIB, "1": 200 * MIB}
    assert account.frees(1) == {MEMORY: 0}
    account.granted = 3
    assert account.frees(1) == {MEMORY: 20, "1": 200 * MIB, "0": 100 * MIB}


def test_gpu_memory_is_estimated_until_it_is_measured() -> None:
    accounts = MemoryAccounts(LIMITS)
    assert opened(accounts, "cpu", devices=[""]).needs(1).keys() == {MEMORY}
    account = opened(accounts, devices=["0"], memory_request=10)
    assert account.needs(1)["0"] == 200 * MIB
    account.record_size(Size(10))  # the used GPU memory is unknown
    account.record_loaded()
    assert account.needs(1)["0"] == 200 * MIB
    account.record_size(Size(10, 300 * MIB))
    assert account.needs(1)["0"] == 300 * MIB


async def test_an_estimate_holds_until_it_has_loaded() -> None:
    account = opened(MemoryAccounts(LIMITS))
    account.granted = 1
    account.record_size(Size(20 * MIB))  # an interpreter, and not yet the model
    assert account.used == {MEMORY: 250 * MIB}
    account.record_size(Size(100 * MIB))
    assert account.used == {MEMORY: 250 * MIB}
    account.record_loaded()
    assert account.used == {MEMORY: 109 * MIB}  # it may grow until one was observed to its exit
    account.finish_stop(account.begin_stop(0))
    assert account.needs(1) == {MEMORY: 100 * MIB}


def test_a_worker_larger_than_a_gpu_is_refused() -> None:
    account = opened(
        MemoryAccounts(LIMITS), devices=["1"], memory_request=10, gpu_memory_request=900 * MIB
    )
    with pytest.raises(RemoteFailure) as failure:
        account.check(account.spec, 1)
    assert failure.value.text == (
        "model m needs 900 MiB, but gpu_memory_budget of GPU 1 is 800 MiB for all models"
    )


def test_shared_memory_counts_once_when_checked() -> None:
    account = opened(MemoryAccounts(LIMITS), memory_request=200 * MIB)
    account.shared = {"weights": 500 * MIB}
    account.check(account.spec, 2)
    with pytest.raises(RemoteFailure) as failure:
        account.check(account.spec, 3)
    assert failure.value.text == (
        "model m needs 3 x 200 MiB, plus 500 MiB that they share, but memory_budget is 1,000 MiB for all models"
    )


async def test_known_sizes_decay() -> None:
    accounts = MemoryAccounts(LIMITS)
    account = opened(accounts)
    for peak in (100, 10):
        account.granted = 1
        account.record_size(Size(peak * MIB))
        account.finish_stop(account.begin_stop(0))
    assert account.known == Size(90 * MIB)


@pytest.mark.parametrize("background", [True, False])
def test_restored_models_wait_while_others_get_memory(loop: VirtualLoop, background: bool) -> None:
    accounts = MemoryAccounts(LIMITS)

    async def take(account: Account) -> None:
        await account.acquire(account.spec, 60.0)

    spec = model_spec("m", memory_request=100 * MIB)
    waiting = loop.create_task(take(accounts.open(spec, background=background)))
    for name in "abc":
        loop.create_task(take(opened(accounts, name, memory_request=100 * MIB)))
        loop.settle()
        loop.ask(lambda: accounts.grant(accounts.claims()[-1].key))
        loop.advance(50.0)
    assert waiting.done() is not background
    loop.advance(11.0)
    with pytest.raises(RemoteFailure, match=f"were free for {160 if background else 60} s"):
        waiting.result()


async def test_a_cancelled_claim_keeps_nothing() -> None:
    accounts = MemoryAccounts(LIMITS)
    account = opened(accounts, memory_request=100 * MIB)
    task = asyncio.ensure_future(account.acquire(account.spec, 60.0))
    await asyncio.sleep(0)
    (claim,) = accounts.claims()
    assert claim.needs == {MEMORY: 100 * MIB}
    accounts.grant(claim.key)
    task.cancel()
    await asyncio.wait([task])
    assert (account.granted, accounts.claims()) == (0, [])
