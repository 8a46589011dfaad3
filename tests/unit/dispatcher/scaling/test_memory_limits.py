"""The budgets that follow from settings, and how memory is divided among waiting claims."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from fakes.fake_clients import model_spec
from fakes.virtual_time import VirtualLoop

from pytriton._host.settings.declarations import DaemonConfig
from pytriton.dispatcher.models.persistence.size_store import SizeStore
from pytriton.dispatcher.scaling import memory_budget
from pytriton.dispatcher.scaling.memory_budget import accounts_of
from pytriton.dispatcher.scaling.memory_policy import MEMORY, KnownSize
from pytriton.dispatcher.telemetry.metrics.process_memory import Gpu
from pytriton.dispatcher.workers.memory_account import Account, MemoryAccounts, PendingClaim

MIB, GIB = 1 << 20, 1 << 30
_KNOWN = {"m": KnownSize("1.5", 100 * MIB)}
_TWO = [Gpu("0", "GPU-a", 80 * GIB), Gpu("1", "GPU-b", 40 * GIB)]


@pytest.mark.parametrize(
    ("settings", "gpus", "limits"),
    [
        ({}, _TWO, {}),
        ({"memory_budget": "2GiB"}, _TWO, {MEMORY: 2 * GIB}),
        ({"memory_budget": "50%"}, [], {MEMORY: 8 * GIB}),
        ({"gpu_memory_budget": "90%"}, _TWO, {"0": 72 * GIB, "1": 36 * GIB}),
        ({"gpu_memory_budget": "10GiB"}, _TWO, {"0": 10 * GIB, "1": 10 * GIB}),
        ({"gpu_memory_budget": "10GiB"}, [], {}),  # which a warning says
        ({"memory_budget": "1GiB", "gpu_memory_budget": "10GiB"}, [], {MEMORY: GIB}),
    ],
)
def test_budgets_follow_the_settings(
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, str],
    gpus: list[Gpu],
    limits: dict[str, int],
) -> None:
    kept = cast(SizeStore, SimpleNamespace(read=lambda: dict(_KNOWN)))
    monkeypatch.setattr(
        "pytriton.dispatcher.scaling.memory_budget.process_memory.gpus", lambda: gpus
    )
    monkeypatch.setattr(memory_budget, "linux", SimpleNamespace(total_memory=lambda: 16 * GIB))
    accounts = accounts_of(DaemonConfig(**cast(Any, settings)), kept)
    assert accounts.limits == limits
    bounded_gpus = {name: number for name, number in accounts.gpus.items() if number in limits}
    assert bounded_gpus == {one.uuid: one.number for one in gpus if one.number in limits}
    assert accounts.sizes == (_KNOWN if limits else {})  # else nobody needs them


# ── who waits ────────────────────────────────────────────────────────────────────────────────────


class Claims:
    """A model with memory for two workers that waits for more."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.accounts = MemoryAccounts({MEMORY: 1000 * MIB})
        self.account: Account = self.accounts.open(model_spec("m", memory_request=100 * MIB))
        self.account.granted = 2

    def claim(self, count: int) -> PendingClaim:
        waiting = self.loop.ask(lambda: PendingClaim(self.account, count))
        self.accounts.waiting.append(waiting)
        return waiting

    def grant(self, waiting: PendingClaim) -> None:
        self.loop.ask(lambda: self.accounts.grant(str(id(waiting))))


@pytest.fixture
def claims(loop: VirtualLoop) -> Claims:
    return Claims(loop)


@pytest.mark.parametrize(
    ("count", "needs", "granted", "extra"),
    [
        (5, 300, 5, 0),
        (2, 0, 2, 0),
        (1, 0, 2, 0),  # what it has is not taken from it
        (0, 100, 2, 1),  # one more, while it takes the place of another one
    ],
)
def test_a_claim_needs_what_its_model_lacks(
    claims: Claims, count: int, needs: int, granted: int, extra: int
) -> None:
    waiting = claims.claim(count)
    assert waiting.needs().get(MEMORY, 0) == needs * MIB
    claims.loop.advance(7.0)
    claims.grant(waiting)
    assert waiting.done.done()
    assert (claims.account.granted, claims.account.extra) == (granted, extra)
    assert claims.accounts.waiting == []
    assert claims.accounts.last_grant == 7.0
    claims.grant(waiting)  # a plan that was made before: nothing happens
    assert claims.account.extra == extra


def test_memory_granted_in_the_meantime_reduces_the_claim(claims: Claims) -> None:
    first, second = claims.claim(4), claims.claim(5)
    claims.grant(first)
    assert second.needs() == {MEMORY: 100 * MIB}


@pytest.mark.parametrize(("wants", "needs"), [(3, 100), (1, 0), (9, 300)])
def test_scaling_down_reduces_the_pending_claim(claims: Claims, wants: int, needs: int) -> None:
    waiting, beside = claims.claim(5), claims.claim(0)
    claims.account.reduce_claims(wants)
    assert waiting.needs().get(MEMORY, 0) == needs * MIB
    assert beside.count == 0


def test_all_claims_of_a_stopping_model_are_refused(claims: Claims) -> None:
    mine, other = claims.claim(5), claims.accounts.open(model_spec("n", memory_request=MIB))
    others = claims.loop.ask(lambda: PendingClaim(other, 1))
    claims.accounts.waiting.append(others)
    claims.loop.ask(lambda: claims.account.withdraw("model m is being stopped"))
    assert str(mine.done.exception()) == "model m is being stopped"
    assert claims.accounts.waiting == [others]
