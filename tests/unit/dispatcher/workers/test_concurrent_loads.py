"""The loads of several workers at once: what is reported meanwhile, and which failure is told."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.workers import concurrent_loads
from pytriton.dispatcher.workers.supervisor import Supervisor

FAILURE = RemoteFailure(ErrorKind.LOAD_FAILED, "no weights", "Traceback")


class Loading:
    """A supervisor whose first worker, or next one, loads or fails as it is told."""

    def __init__(self, index: int, failure: RemoteFailure | None, *, lacks: bool = True) -> None:
        self.index = index
        self.lacks_worker = lacks
        self.first = asyncio.get_running_loop().create_future()
        self._failure = failure

    def load(self) -> None:
        if self._failure is None:
            self.first.set_result(None)
        else:
            self.first.set_exception(self._failure)

    async def retry_now(self) -> None:
        if self._failure is not None:
            raise self._failure


class Reports(list[str]):
    """The texts of progress."""

    async def __call__(self, progress: messages.Progress) -> None:
        self.append(progress.text)


def supervisors(*ones: Loading) -> Any:
    return cast("list[Supervisor]", list(ones))


def test_each_first_worker_is_reported() -> None:
    async def run() -> Reports:
        ones, reports = [Loading(0, None), Loading(1, None)], Reports()
        for one in ones:
            one.load()
        await concurrent_loads.until_first_ready(supervisors(*ones), reports)
        return reports

    assert asyncio.run(run()) == [
        "loading 2 workers",
        "worker 1 of 2 loaded",
        "worker 2 of 2 loaded",
    ]


def test_the_first_that_fails_ends_the_wait_for_all() -> None:
    async def run() -> None:
        waits, fails = Loading(0, None), Loading(1, FAILURE)
        fails.load()
        with pytest.raises(RemoteFailure, match="no weights"):
            await concurrent_loads.until_first_ready(supervisors(waits, fails), Reports())
        assert waits.first.cancelled()

    asyncio.run(run())


def test_a_retry_loads_missing_workers_and_names_failed_instances() -> None:
    async def run() -> None:
        ones = [Loading(0, FAILURE, lacks=False), Loading(1, None), Loading(2, FAILURE)]
        reports = Reports()
        with pytest.raises(RemoteFailure) as failure:
            await concurrent_loads.retry_now("m", supervisors(*ones), reports)
        assert failure.value.text == "instance 2 of model m has no worker: no weights"
        assert failure.value.kind is ErrorKind.LOAD_FAILED
        assert reports == ["loading 2 workers to replace exited ones"]

    asyncio.run(run())


def test_where_none_is_lacking_nothing_is_said() -> None:
    async def run() -> None:
        reports = Reports()
        one = Loading(0, FAILURE, lacks=False)
        await concurrent_loads.retry_now("m", supervisors(one), reports)
        assert reports == []

    asyncio.run(run())
