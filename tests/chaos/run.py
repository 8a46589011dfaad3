"""The sequence of a run: a daemon with its models, load, then one fault after the other, with a recovery after each."""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import ge
from typing import Any

from support.ports import lasting_port
from support.real_daemon import RunningDaemon, eventually

from chaos import models
from chaos.faults import FAULTS
from chaos.leaks import Holding
from chaos.ledger import RequestLedger
from chaos.load import Load
from pytriton._protocol.messages import SERVED_STATES

#: Everything has to be recovered within this time of a fault.
_RECOVERY_S = 90.0
#: What a former proxy, a thread or a connection may take to end when all is recovered.
_GONE_S = 30.0
#: Requests that have to be answered between two faults.
_BETWEEN = 60


@dataclass
class Outcome:
    """What a run has shown. `leaks` says what each daemon held too much in the end.

    `memory_suspended`: models suspended for others, of the last daemon. `abort`: why the run ended early.
    """

    ledger: RequestLedger
    leaks: list[str] = field(default_factory=list)
    seconds: float = 0.0
    memory_suspended: int = 0
    abort: str = ""


class Target:
    """The daemon under test; a restarted one listens on the same ports and uses the same state directory."""

    def __init__(self, state_dir: str, ledger: RequestLedger, *, elastic: bool = False) -> None:
        self.ledger = ledger
        self._slack = models.ELASTIC_WORKERS if elastic else 0
        self._settings: dict[str, Any] = {
            **(models.ELASTIC_SETTINGS if elastic else {}),
            "state_dir": state_dir,
            "http_port": lasting_port(),
            "grpc_port": lasting_port(),
            "server_probe_interval_s": 0.5,
            "server_probe_timeout_s": 10.0,
            "server_backoff_max_s": 1.0,
            "worker_backoff_s": 0.1,
            "worker_backoff_max_s": 1.0,
            "not_ready_after_s": 20.0,
            "grace_period_s": 5.0,
        }
        self._stack = contextlib.ExitStack()
        self.leaks: list[str] = []
        self.daemon = self._start()
        for name in models.SALTS:
            models.register(self.daemon.client, name)
        self._since = self.at_rest()

    def restart(self, number: int) -> None:
        """End the daemon with a signal, and start another one, which restores the models."""
        self._look_for_leaks()
        self.daemon.stop(number)
        self._stack.close()  # checks that nothing is left
        self.daemon = self._start()
        self.recovered()
        self._since = self.at_rest()

    def recovered(self) -> None:
        """Wait until every model has all its workers, and each instance its proxy."""
        eventually(self._is_recovered, self._story, _RECOVERY_S)

    def _story(self) -> str:
        status = self.daemon.client.status()
        return f"all is recovered: tritonserver {status.server.state}; " + "; ".join(
            f"{info.name} {info.state} {[(one.state, one.lanes) for one in info.instances]}"
            for info in status.models
        )

    def at_rest(self) -> Holding:
        """Return the resources of the idle daemon, once former proxies have exited."""
        holding = [Holding.of(self.daemon)]

        def settled() -> bool:
            time.sleep(0.5)
            holding.append(Holding.of(self.daemon))
            return self._slack > 0 or holding[-1].processes == holding[-2].processes

        eventually(settled, "processes come and go")
        return holding[-1]

    def slept(self) -> int:
        """Return how many models were suspended because others needed their memory."""
        return self.daemon.client.metrics().daemon.memory_suspended

    def close(self) -> None:
        """Stop the daemon; fail if anything of it is left."""
        self._look_for_leaks()
        self._stack.close()

    def _look_for_leaks(self) -> None:
        """Record resources that are still in use after a while; no event reports that a process has released one."""
        deadline = time.monotonic() + _GONE_S
        while found := self.at_rest().too_much(self._since, self._slack):
            if time.monotonic() > deadline:
                self.leaks += found
                return

    def _start(self) -> RunningDaemon:
        return self._stack.enter_context(RunningDaemon.start(**self._settings))

    def _is_recovered(self) -> bool:
        status = self.daemon.client.status()
        infos = {info.name: info for info in status.models}
        return (
            status.server.state == "ready"
            and set(infos) == set(models.SALTS)
            and all(info.state in SERVED_STATES for info in infos.values())
            and all(
                info.state == "ready"
                and all(one.state == "ready" for one in info.instances)
                and sum(one.lanes for one in info.instances)
                == models.lanes(info.name) * sum(not one.standby for one in info.instances)
                for info in infos.values()
                if not models.is_elastic(info.name)
            )
        )


@contextlib.contextmanager
def _loaded(target: Target, ledger: RequestLedger, clients: int) -> Iterator[Load]:
    load = Load(target.daemon.http, target.daemon.grpc, ledger, clients)
    load.start()
    try:
        yield load
    finally:
        load.stop()


def run(
    seed: int, seconds: float, names: Sequence[str], clients: int, *, elastic: bool = False
) -> Outcome:
    """Break a daemon for a while: each fault at least once, in a random order determined by the seed."""
    if elastic:
        models.add_elastic()
    chance = random.Random(seed)
    ledger = RequestLedger()
    outcome = Outcome(ledger)
    with tempfile.TemporaryDirectory(prefix="chaos-") as state_dir:
        target = Target(state_dir, ledger, elastic=elastic)

        def inject(name: str) -> None:
            FAULTS[name].inject(target, chance)
            target.recovered()

        with _loaded(target, ledger, clients) as load:
            outcome.seconds = inject_all(inject, names, ledger, load, seconds, chance)
            outcome.memory_suspended = target.slept()
        target.close()
        outcome.leaks = target.leaks
    return outcome


def inject_all(
    inject: Callable[[str], None],
    names: Sequence[str],
    ledger: RequestLedger,
    load: Load,
    seconds: float,
    chance: random.Random,
) -> float:
    """Inject faults under load for a while, each at least once. Return how long that took, in seconds.

    `inject` injects the fault of a name, and waits until everything has recovered.
    """
    _answered(ledger, load)
    begun = time.monotonic()

    def is_over() -> bool:
        return time.monotonic() - begun > seconds and set(names) <= set(ledger.accounts)

    while not is_over():
        for name in chance.sample(list(names), len(names)):
            print(f"{time.strftime('%X')} {name}", file=sys.stderr, flush=True)
            ledger.begin(name)
            inject(name)
            ledger.recovered()
            _answered(ledger, load)
            if is_over():
                break
    return time.monotonic() - begun


def _answered(ledger: RequestLedger, load: Load) -> None:
    """Wait for some responses, and for one of each client: requests in flight belong to the previous fault."""
    wanted = ledger.answered() + _BETWEEN
    rounds = [ended + 2 for ended in load.ended]
    eventually(
        lambda: ledger.answered() >= wanted and all(map(ge, load.ended, rounds)),
        "requests are answered",
        _RECOVERY_S,
    )
