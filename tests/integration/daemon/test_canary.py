"""Canary rollouts on three real daemons under load: a bad version is rolled back, a good one reaches all nodes."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from support.models.inference import Array, Inference
from support.models.tensors import X, Y
from support.real_daemon import RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton._protocol import messages
from pytriton.daemon import connect
from pytriton.decorators import batch
from pytriton.exceptions import CanaryError, FleetError
from pytriton.fleet import Canary, FleetClient

#: Between a client's rounds: without, it has the CPU time that the rollout needs.
_PAUSE_S = 0.01


@batch
def old(x: Array) -> dict[str, Array]:
    return {"y": x}


@batch
def good(x: Array) -> dict[str, Array]:
    return {"y": x * 2}


@batch
def bad(x: Array) -> dict[str, Array]:
    raise ValueError("a fault that no test has found")


@pytest.fixture(scope="module")
def daemons() -> Iterator[list[RunningDaemon]]:
    with ExitStack() as stack:
        yield [stack.enter_context(RunningDaemon.start()) for _ in range(3)]


@pytest.fixture(scope="module")
def nodes(daemons: list[RunningDaemon]) -> list[str]:
    return [str(one.config.runtime_dir) for one in daemons]


@pytest.fixture(scope="module")
def fleet(nodes: list[str]) -> FleetClient:
    """Three nodes that serve `old` as the model m, also after each test."""
    fleet = connect(nodes=nodes, timeout_s=60)
    fleet.register(old, "m", X, Y, progress=False)
    return fleet


class Traffic:
    """A client that sends requests to the nodes in turn until it is stopped, and counts the responses."""

    def __init__(self, daemons: list[RunningDaemon]) -> None:
        self._connections = [Inference("http", one.http) for one in daemons]
        self.answers: Counter[str] = Counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        x = np.ones((1, 1), np.float32)
        while not self._stop.wait(_PAUSE_S):
            for one in self._connections:
                try:
                    answer = str(one.infer("m", {"x": x})["y"].item())
                except InferenceServerException as error:
                    answer = "fault" if "no test has found" in str(error) else repr(error)
                self.answers[answer] += 1

    def has_more(self, count: int) -> None:
        """Wait for `count` more responses."""
        wanted = sum(self.answers.values()) + count
        eventually(lambda: sum(self.answers.values()) >= wanted, lambda: str(self.answers))

    @classmethod
    @contextmanager
    def at(cls, daemons: list[RunningDaemon]) -> Iterator[Traffic]:
        one = cls(daemons)
        one._thread.start()
        try:
            one.has_more(30)
            yield one
        finally:
            one._stop.set()
            one._thread.join()
            for connection in one._connections:
                connection.close()


def instances_of(daemons: list[RunningDaemon]) -> list[messages.InstanceInfo]:
    return [one for daemon in daemons for one in daemon.client.model("m").info().instances]


def test_a_bad_version_is_rolled_back_and_only_its_share_fails(
    daemons: list[RunningDaemon], fleet: FleetClient
) -> None:
    reported: list[str] = []
    with Traffic.at(daemons) as traffic:
        with pytest.raises(
            CanaryError, match=r"of its .* requests failed; of the old version's requests, 0"
        ):
            fleet.register(
                bad, "m", X, Y, replace=True, canary=Canary(0.1, watch_s=600),
                progress=lambda event: reported.append(event.text),
            )  # fmt: skip
        traffic.has_more(30)
        failed, total = traffic.answers["fault"], sum(traffic.answers.values())
        traffic.has_more(30)
        assert traffic.answers["fault"] == failed  # it is gone
    assert set(traffic.answers) == {"fault", "1.0"}
    assert 3 <= failed <= total / 3
    assert any(one.startswith("rollout: on 0 of 3 nodes") for one in reported)
    assert {info.lease for info in fleet.model("m").by_node.values()} == {None}


def test_a_rollback_restores_the_previous_code_although_its_file_changed(
    daemons: list[RunningDaemon],
    fleet: FleetClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    sound = (
        "from pytriton.decorators import batch\n\n\n@batch\ndef infer(x):\n    return {'y': x}\n"
    )
    (tmp_path / "rolled.py").write_text(sound)
    importlib.import_module("rolled")
    fleet.register(sys.modules["rolled"].infer, "m", X, Y, replace=True, progress=False)
    (tmp_path / "rolled.py").write_text(sound.replace("return", "raise ValueError(__file__)  #"))
    del sys.modules["rolled"]
    importlib.invalidate_caches()
    importlib.import_module("rolled")
    with Traffic.at(daemons) as traffic:
        with pytest.raises(CanaryError):
            fleet.register(
                sys.modules["rolled"].infer, "m", X, Y, replace=True,
                canary=Canary(0.1, watch_s=600), progress=False,
            )  # fmt: skip
        for instance in instances_of(daemons):  # what serves from now on has loaded it just now
            assert instance.pid is not None
            os.kill(instance.pid, signal.SIGKILL)
        eventually(
            lambda: all(one.restarts and one.state == "ready" for one in instances_of(daemons)),
            lambda: str(instances_of(daemons)),
        )
        traffic.answers.clear()
        traffic.has_more(60)
    assert set(traffic.answers) == {"1.0"}
    del sys.modules["rolled"]


def test_a_good_version_is_rolled_out_and_can_be_rolled_back(
    daemons: list[RunningDaemon], fleet: FleetClient
) -> None:
    with Traffic.at(daemons) as traffic:
        fleet.register(
            good, "m", X, Y, replace=True, canary=Canary(0.1, watch_s=0.5), progress=False
        )
        traffic.answers.clear()
        traffic.has_more(30)
        fleet.rollback("m", progress=False)
        traffic.has_more(30)
    assert set(traffic.answers) == {"1.0", "2.0"}
    digests = {one.client.registrations("m")[0].digest for one in daemons}
    assert len(digests) == 1


def test_nodes_roll_back_when_the_rollout_client_is_killed(
    daemons: list[RunningDaemon], nodes: list[str], fleet: FleetClient, tmp_path: Path
) -> None:
    (tmp_path / "rolling_out.py").write_text(
        "import sys\n"
        "import pytriton.fleet.rollout as lease\n"
        "lease.LEASE_S, lease._RENEW_S = 20.0, 0.5\n"
        "import pytriton\n"
        "from pytriton.fleet import Canary\n"
        "from pytriton.decorators import batch\n"
        "from pytriton.model_config import Tensor\n"
        "import numpy as np\n"
        "@batch\n"
        "def new(x):\n"
        "    return {'y': x * 3}\n"
        "t = lambda name: [Tensor(name=name, dtype=np.float32, shape=(-1,))]\n"
        "fleet = pytriton.connect(nodes=sys.argv[1:], timeout_s=60)\n"
        "fleet.register(new, 'm', t('x'), t('y'), replace=True, canary=Canary(0.1, watch_s=600), progress=False)\n"
    )
    with Traffic.at(daemons) as traffic:
        rolling = subprocess.Popen(
            [sys.executable, str(tmp_path / "rolling_out.py"), *nodes], env=dict(os.environ)
        )
        try:
            eventually(lambda: traffic.answers["3.0"] > 0, lambda: str(traffic.answers))
            provisional = [info.lease for info in fleet.model("m").by_node.values()]
            assert [one.share for one in provisional if one is not None] == [0.1]
        finally:
            rolling.kill()
            rolling.wait()
        eventually(
            lambda: not any(info.lease for info in fleet.model("m").by_node.values()),
            lambda: str(traffic.answers),
            100,
        )
        traffic.answers.clear()
        traffic.has_more(30)
    assert set(traffic.answers) == {"1.0"}


def test_concurrent_registrations_succeed_on_all_nodes_or_on_none(
    daemons: list[RunningDaemon], nodes: list[str]
) -> None:
    def register(number: int) -> str:
        order = [*nodes[number:], *nodes[:number]]
        try:
            connect(nodes=order, timeout_s=60).register(
                (old, good, bad)[number], "contested", X, Y, progress=False
            )
        except FleetError as error:
            return str(error)
        return "registered"

    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(register, range(3)))
    found = [
        [one.digest for one in daemon.client.registrations() if one.spec.name == "contested"]
        for daemon in daemons
    ]
    assert found == [found[0]] * 3
    assert answers.count("registered") == len(found[0]), answers
    if found[0]:
        connect(nodes=nodes, timeout_s=60).unregister("contested")
