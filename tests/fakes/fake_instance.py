"""An instance under a supervisor, with fake workers that the test controls."""

from __future__ import annotations

import asyncio
import errno

import msgspec

from fakes.fake_worker import SPEC, FakeWorker
from fakes.virtual_time import VirtualLoop
from pytriton._protocol import messages
from pytriton.dispatcher.workers.memory_account import Account
from pytriton.dispatcher.workers.supervisor import RestartPolicy, Supervisor
from pytriton.dispatcher.workers.worker import Worker

_START_S, _LOAD_S, _FIRST_S, _MAX_DELAY_S = 10.0, 100.0, 4.0, 60.0
_SPEC = msgspec.structs.replace(SPEC, load_timeout_s=_LOAD_S)


class Instance:
    """An instance under a supervisor, on a virtual clock."""

    def __init__(
        self,
        loop: VirtualLoop,
        limit: int | None = None,
        account: Account | None = None,
        fork_server_s: float = 0.0,
    ) -> None:
        """`fork_server_s`: seconds until a process has started."""
        self.loop = loop
        self.workers: list[FakeWorker] = []
        self.retry_task: asyncio.Future[None] | None = None
        self._short = 0
        policy = RestartPolicy(_START_S, limit, _FIRST_S, _MAX_DELAY_S)

        async def start(slot: int) -> Worker:
            if self._short:
                self._short -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            if fork_server_s:
                await asyncio.sleep(fork_server_s)
            self.workers.append(FakeWorker(len(self.workers), _SPEC, slot, greeted=False))
            return self.workers[-1]

        async def report(ready: str | None) -> None:
            """Do nothing: nobody waits for progress in these tests."""

        async def supervised() -> Supervisor:
            return Supervisor(0, _SPEC, start, policy, report, account=account)

        self.supervisor = loop.run(supervised())
        loop.settle()

    def do(self, step: str) -> None:
        """Perform one step of a history, and run everything until it waits."""
        who, _, what = step.partition(" ")
        if who == "after":
            self.loop.advance(float(what.partition(" ")[0]))
        elif step == "descriptors are short":
            self._short += 1
        elif step == "is retried now":
            self.retry_task = self.loop.create_task(self.supervisor.retry_now())
        else:
            self.loop.ask(lambda: self._happens(self.workers[int(who[1:])], what))
        self.loop.settle()

    def _happens(self, worker: FakeWorker, what: str) -> None:
        if what == "says hello":
            worker.greet()
        elif what == "serves":
            worker.loaded()
        elif what == "cannot load":
            worker.failed(messages.WorkerFailed(worker.name, "no file", ""))
        elif what == "answers a batch":
            worker.begin()
            worker.answer()
        elif what == "hangs":
            worker.begin()
        elif what == "is killed" or what == "crashes":
            worker.end()
        elif what == "crashes in a batch":
            worker.end(in_batch=True)
        elif what == "is due":
            worker.become_due()
        elif what == "takes no other lane":
            worker.become_due(messages.RecycleReason.NO_LANE)
        else:
            raise ValueError(f"no worker ever {what}")

    def said(self) -> str:
        """Return the instance's state, serving worker, remaining delay and crash loop as text."""

        def reported() -> str:
            info = self.supervisor.info(0, standby=False)
            serving = self.supervisor.serving
            words = [info.state]
            if serving is not None:
                words.append(serving.name)
            if info.next_try_at is not None:
                words.append(f"{info.next_try_at - self.loop.time():g} s")
            if self.supervisor.is_crash_looping:
                words.append("crash-looping")
            return " ".join(words)

        return self.loop.ask(reported)

    def look(self) -> None:
        """Check the invariants."""
        alive = [worker for worker in self.workers if worker.alive]
        for worker in alive:
            assert not worker.ready.done() or worker.ready.exception() is None, (
                "a worker that failed to load is alive"
            )
        staying = [worker for worker in alive if not worker.is_ending]
        assert len(staying) <= 2
        serving = self.loop.ask(lambda: self.supervisor.serving)
        for worker in staying:
            assert worker in (serving, self.workers[-1]), "an unneeded worker is alive"

    def info(self) -> messages.InstanceInfo:
        return self.loop.ask(lambda: self.supervisor.info(0, standby=False))

    def stop(self) -> None:
        self.loop.run(self.supervisor.stop(1.0))
        self.loop.settle()
