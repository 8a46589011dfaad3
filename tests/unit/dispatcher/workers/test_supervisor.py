"""The delays between restarts, and concurrent requests for an immediate retry."""

from __future__ import annotations

import asyncio

import pytest

from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.workers.supervisor import ImmediateRetry, RestartPolicy


def test_delays_grow_to_the_maximum() -> None:
    policy = RestartPolicy(1.0, None, 0.5, 30.0)
    delays = [policy.delay_s(failures) for failures in (1, 2, 3, 8, 9, 100_000)]
    assert delays == [0.0, 0.5, 1.0, 30.0, 30.0, 30.0]


async def test_concurrent_requests_share_one_attempt_and_its_failure() -> None:
    retry = ImmediateRetry()
    requests = [asyncio.create_task(retry.request()) for _ in range(2)]
    await retry.requested.wait()
    await asyncio.sleep(0)
    retry.finish(RemoteFailure(ErrorKind.LOAD_FAILED, "no weights"))
    for one in requests:
        with pytest.raises(RemoteFailure, match="no weights"):
            await one
    again = asyncio.create_task(retry.request())
    await retry.requested.wait()
    assert not again.done()
    retry.finish(None)
    await again
    assert not retry.requested.is_set()


async def test_a_cancelled_request_leaves_the_attempt_to_others() -> None:
    retry = ImmediateRetry()
    cancelled, other = (asyncio.create_task(retry.request()) for _ in range(2))
    await retry.requested.wait()
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert retry.requested.is_set()
    retry.finish(None)
    await other


async def test_requests_fail_after_an_internal_error_ended_the_supervisor() -> None:
    retry = ImmediateRetry()
    early = asyncio.create_task(retry.request())
    await retry.requested.wait()
    await asyncio.sleep(0)
    retry.give_up(ValueError("no such proxy"))
    for request in (early, asyncio.create_task(retry.request())):
        with pytest.raises(RemoteFailure, match="internal error: no such proxy"):
            await asyncio.wait_for(request, 10)
