"""Two real daemons as one fleet, over TCP with a key: a registration reaches both nodes or none; nodes can join."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.forks.prefork import command
from support.haproxy import statistics
from support.models.inference import Array, Inference, infer_once
from support.models.tensors import X, Y
from support.ports import lasting_port
from support.real_daemon import RunningDaemon

from pytriton._host.client_keys import KeyStore
from pytriton.daemon import connect
from pytriton.decorators import batch
from pytriton.exceptions import FleetError
from pytriton.fleet import FleetClient
from pytriton.fleet.balancer.balance import Balancer
from pytriton.fleet.balancer.configuration import BalancerSettings
from pytriton.fleet.balancer.haproxy import INSTALL, HAProxy, HAProxyError, find_haproxy


@batch
def double(x: Array) -> dict[str, Array]:
    return {"y": x * 2}


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = KeyStore(tmp_path_factory.mktemp("keys") / "keys")
    store.make_server_key()
    path = store.folder.parent / "alice.pytriton-key"
    store.add("alice", path)
    return path


@pytest.fixture(scope="module")
def daemons(key_file: Path) -> Iterator[list[RunningDaemon]]:
    settings = {"control_tcp": "127.0.0.1:0", "keys_dir": str(key_file.parent / "keys")}
    with RunningDaemon.start(**settings) as one, RunningDaemon.start(**settings) as other:
        yield [one, other]


@pytest.fixture
def nodes(daemons: list[RunningDaemon]) -> list[str]:
    return [one.client.status().control_tcp for one in daemons]


@pytest.fixture
def fleet(nodes: list[str], key_file: Path) -> FleetClient:
    return connect(nodes=nodes, key_file=key_file, timeout_s=60)


def answers(daemon: RunningDaemon, model: str) -> list[list[float]]:
    found: list[list[float]] = infer_once(daemon, model, {"x": np.ones((1, 2), np.float32)})[
        "y"
    ].tolist()
    return found


def test_one_call_registers_with_all_nodes(
    daemons: list[RunningDaemon], fleet: FleetClient, nodes: list[str], key_file: Path
) -> None:
    model = fleet.register(double, "twice", X, Y, progress=False)
    assert model.instances == 2
    assert [answers(one, "twice") for one in daemons] == [[[2, 2]]] * 2
    assert fleet.scale("twice", 2, progress=False).instances == 4
    places = ("--nodes", ",".join(nodes), "--key-file", str(key_file))
    shown = command("fleet", "models", "--json", *places)
    assert shown.returncode == 0, shown.stderr
    assert list(json.loads(shown.stdout)["twice"]["nodes"]) == nodes
    fleet.unregister("twice")
    assert fleet.models() == []


def test_a_load_failure_on_one_node_rolls_back_all_nodes(
    daemons: list[RunningDaemon], fleet: FleetClient, nodes: list[str]
) -> None:
    only = str(daemons[0].config.runtime_dir)

    class Picky:
        """Loads on the first node only."""

        def __init__(self) -> None:
            import pytriton.worker

            if not str(pytriton.worker.__file__).startswith(only):  # a daemon has its own copy
                raise RuntimeError("not on this node")

        def __call__(self, requests: list[dict[str, Array]]) -> list[dict[str, Array]]:
            return [{"y": one["x"]} for one in requests]

    with pytest.raises(FleetError, match="not on this node") as caught:
        fleet.register(Picky, "picky", X, Y, factory=True, progress=False)
    assert list(caught.value.failures) == [nodes[1]]
    assert fleet.models() == []


def test_a_joining_node_gets_the_models_of_the_fleet(
    daemons: list[RunningDaemon], fleet: FleetClient, nodes: list[str], key_file: Path
) -> None:
    connect(nodes=nodes[:1], key_file=key_file, timeout_s=60).register(
        double, "late", X, Y, progress=False
    )
    assert fleet.sync(progress=False) == [f"{nodes[1]}: late was registered, as on {nodes[0]}"]
    assert answers(daemons[1], "late") == [[2, 2]]
    assert fleet.sync() == []
    fleet.unregister("late")


def test_one_address_serves_both_nodes_over_http_and_grpc(
    daemons: list[RunningDaemon], fleet: FleetClient
) -> None:
    try:
        program = find_haproxy()
    except HAProxyError:
        pytest.skip(f"needs HAProxy: {INSTALL}")
    fleet.register(double, "both", X, Y, progress=False)
    daemons[1].client.register(double, "second", X, Y, progress=False)
    folder = Path(tempfile.mkdtemp(prefix="ptb-"))
    haproxy = HAProxy(folder, program)
    http, grpc = (f"127.0.0.1:{lasting_port()}" for _ in range(2))
    try:
        assert Balancer(haproxy, BalancerSettings(http, grpc), fleet.status).follow()
        for model in ("both", "second"):
            for protocol, address in (("http", http), ("grpc", grpc)):
                connection = Inference(protocol, address)
                for size in (2, 500_000):  # larger than HAProxy's buffer, too
                    x = np.ones((1, size), np.float32)
                    for _ in range(4):
                        assert connection.infer(model, {"x": x})["y"].sum() == 2 * size
                connection.close()
        asked = [row for row in statistics(haproxy) if int(row["stot"] or 0)]
        assert {row["# pxname"] for row in asked} == {
            f"{protocol}:model-{model}"
            for protocol in ("http", "grpc")
            for model in ("both", "second")
        }
        assert len({row["svname"] for row in asked}) == 2
    finally:
        haproxy.stop()
        shutil.rmtree(folder)
        fleet.unregister("both")
        daemons[1].client.unregister("second")
