"""A fleet of scripted dispatchers: what each one receives, and what happens to the others if one refuses."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from fakes.fleet.nodes import SPEC, Node

from pytriton._protocol import messages
from pytriton._protocol.messages.model_spec import registration_digest
from pytriton.daemon import connect
from pytriton.exceptions import (
    DaemonNotRunningError,
    FleetError,
    ModelExistsError,
    ModelNotFoundError,
    PyTritonBadParameterError,
)
from pytriton.fleet import FleetClient
from pytriton.model_config import Tensor

X = Tensor(name="x", dtype=np.float32, shape=(-1,))


def infer(requests: Any) -> Any:
    return requests


@pytest.fixture
def nodes() -> Iterator[list[Node]]:
    made = [Node(), Node(), Node()]
    yield made
    for one in made:
        one.close()


@pytest.fixture
def fleet(nodes: list[Node]) -> FleetClient:
    return connect(nodes=[one.path for one in nodes], timeout_s=60)


def register(fleet: FleetClient, **more: Any) -> Any:
    return fleet.register(infer, "m", [X], [X], **{"progress": False, **more})


def test_every_node_gets_the_same_message_and_payload(
    nodes: list[Node], fleet: FleetClient
) -> None:
    model = register(fleet)
    sent = [
        (one.heard[index], one.payloads[index])
        for one in nodes
        for index, message in enumerate(one.heard)
        if isinstance(message, messages.Register)
    ]
    assert len(sent) == 3
    assert sent[0][1] != [b""]
    assert sent == [sent[0]] * 3
    assert list(model.by_node) == [one.path for one in nodes]
    assert (model.ready, model.instances, model.missing) == (3, 3, [])


def test_progress_names_the_node_and_counts_all(nodes: list[Node], fleet: FleetClient) -> None:
    reported: list[messages.Progress] = []
    lock = threading.Lock()

    def report(event: messages.Progress) -> None:
        with lock:
            reported.append(event)

    register(fleet, progress=report)
    assert {one.text for one in reported} == {f"{node.path}: loads" for node in nodes}
    assert max((one.done, one.total) for one in reported) == (3, 6)


def sent(node: Node) -> list[Any]:
    """Return a node's messages about a registration: "register", "keep" or "take back"."""
    names = {True: "keep", False: "take back"}
    return [
        names[one.keep] if isinstance(one, messages.EndLease) else "register"
        for one in node.changes()
        if isinstance(one, (messages.Register, messages.EndLease))
    ]


def test_a_registration_is_confirmed_on_all_nodes(nodes: list[Node], fleet: FleetClient) -> None:
    model = register(fleet)
    assert [sent(one) for one in nodes] == [["register", "keep"]] * 3
    assert [one.lease for one in model.by_node.values()] == [None] * 3


@pytest.mark.parametrize("replace", [False, True])
def test_a_refusal_on_one_node_withdraws_from_the_others(
    nodes: list[Node], fleet: FleetClient, replace: bool
) -> None:
    if replace:
        for one in nodes[1:]:
            one.models["m"] = "old"
    nodes[2].refuses = messages.Register
    with pytest.raises(FleetError, match="no room") as caught:
        register(fleet, replace=replace)
    assert list(caught.value.failures) == [nodes[2].path]
    assert [one.leases for one in nodes] == [{}, {}, {}]
    # A cancelled registration may have completed: the node is asked, and denies it.
    assert [sent(one) for one in nodes[:2]] == [["register", "take back"]] * 2
    assert sent(nodes[2]) == ["register"]


@pytest.mark.parametrize("registers", [True, False])
def test_a_disconnected_node_is_asked_to_roll_back(
    nodes: list[Node], fleet: FleetClient, registers: bool
) -> None:
    nodes[1].restarts_on, nodes[1].registers = messages.Register, registers
    with pytest.raises(FleetError) as caught:
        register(fleet)
    assert sent(nodes[1]) == ["register", "take back"]
    unknown = f"the outcome on {nodes[1].path} is unknown"
    assert (unknown in str(caught.value)) is not registers
    assert [one.models for one in nodes] == [{}, {}, {}]


def test_a_node_that_dies_during_the_registration_rolls_back_by_itself(
    nodes: list[Node], fleet: FleetClient
) -> None:
    nodes[1].die_on = messages.Register
    with pytest.raises(FleetError, match="that node rolls it back within 30 s"):
        register(fleet)
    assert [sent(one) for one in (nodes[0], nodes[2])] == [["register", "take back"]] * 2


def test_a_node_that_dies_after_the_registration_causes_a_rollback_everywhere(
    nodes: list[Node], fleet: FleetClient
) -> None:
    nodes[1].answers[messages.RenewLease] = lambda _: [messages.Failure("not_found", "nothing")]
    with pytest.raises(FleetError, match="some have lost it in the meantime") as caught:
        register(fleet)
    assert list(caught.value.failures) == [nodes[1].path]
    assert [sent(one) for one in nodes] == [["register", "take back"]] * 3
    assert [one.models for one in nodes] == [{}, {}, {}]


def test_a_node_that_does_not_confirm_is_named(nodes: list[Node], fleet: FleetClient) -> None:
    nodes[1].refuses = messages.EndLease
    with pytest.raises(FleetError, match=r"is confirmed on (?s:.*)`sync`") as caught:
        register(fleet)
    assert list(caught.value.failures) == [nodes[1].path]
    assert [one.leases for one in (nodes[0], nodes[2])] == [{}, {}]


def test_concurrent_clients_do_not_roll_each_other_back(
    nodes: list[Node], fleet: FleetClient
) -> None:
    """The other client was faster on the second node, with the same callable."""
    other = messages.Lease("other")
    refused = [messages.Failure("exists", "a model named 'm' is already registered")]

    def was_faster(message: Any) -> list[Any]:
        nodes[1].models["m"] = registration_digest(message.spec, nodes[1].payloads[-1])
        nodes[1].leases["m"] = other
        return refused

    nodes[1].answers[messages.Register] = was_faster
    with pytest.raises(ModelExistsError):
        register(fleet)
    assert nodes[1].leases == {"m": other}
    assert [one.models for one in (nodes[0], nodes[2])] == [{}, {}]


def test_a_name_in_use_anywhere_is_refused_before_anything_is_sent(
    nodes: list[Node], fleet: FleetClient
) -> None:
    nodes[1].models["m"] = "other"
    with pytest.raises(ModelExistsError, match=f"already registered on {nodes[1].path}"):
        register(fleet)
    assert [one.changes() for one in nodes] == [[], [], []]


def test_nothing_changes_when_a_node_is_down(nodes: list[Node], fleet: FleetClient) -> None:
    nodes[1].die()
    for change in (
        lambda: register(fleet),
        lambda: fleet.scale("m", 2),
        lambda: fleet.rollback("m"),
        lambda: fleet.sync(),
    ):
        with pytest.raises(DaemonNotRunningError, match=r"1 of 3 nodes(?s:.*)No daemon is running"):
            change()
    assert [one.changes() for one in nodes] == [[], [], []]


@pytest.mark.parametrize("option", [{"isolation": "thread"}, {"ephemeral": True}])
def test_process_bound_models_are_refused(
    nodes: list[Node], fleet: FleetClient, option: dict[str, Any]
) -> None:
    with pytest.raises(PyTritonBadParameterError, match="on a single node"):
        register(fleet, **option)
    assert nodes[0].heard == []


def test_scale_is_undone_if_another_node_refuses(nodes: list[Node], fleet: FleetClient) -> None:
    for one in nodes:
        one.models["m"] = "same"
    nodes[0].refuses = messages.Scale
    with pytest.raises(FleetError, match=r"was not scaled, on no node"):
        fleet.scale("m", 5, progress=False)
    for one in nodes[1:]:
        assert one.changes() == [messages.Scale("m", 5), messages.Scale("m", 2)]


@pytest.mark.parametrize("change", ["scale", "rollback"])
def test_a_model_missing_on_one_node_is_not_changed_on_the_others(
    nodes: list[Node], fleet: FleetClient, change: str
) -> None:
    nodes[0].models["m"] = "same"
    with pytest.raises(ModelNotFoundError, match=f"{nodes[1].path}, {nodes[2].path}; `sync`"):
        fleet.scale("m", 2) if change == "scale" else fleet.rollback("m")
    assert nodes[0].changes() == []


def test_unregister_succeeds_on_nodes_without_the_model(
    nodes: list[Node], fleet: FleetClient
) -> None:
    nodes[0].models["m"] = "same"
    fleet.unregister("m")
    assert nodes[0].models == {}
    with pytest.raises(ModelNotFoundError, match="no node serves"):
        fleet.unregister("m")


def test_unregister_names_the_failed_nodes(nodes: list[Node], fleet: FleetClient) -> None:
    for one in nodes:
        one.models["m"] = "same"
    nodes[1].die()
    with pytest.raises(FleetError, match="on all nodes") as caught:
        fleet.unregister("m")
    assert list(caught.value.failures) == [nodes[1].path]
    assert [one.models for one in (nodes[0], nodes[2])] == [{}, {}]


def test_sync_sends_the_payload_to_nodes_that_lack_it(
    nodes: list[Node], fleet: FleetClient
) -> None:
    nodes[1].models["m"] = registration_digest(SPEC, [b"payload"])
    steps = fleet.sync(progress=False)
    assert steps == [
        f"{one.path}: m was registered, as on {nodes[1].path}" for one in (nodes[0], nodes[2])
    ]
    for one in (nodes[0], nodes[2]):
        index = one.heard.index(messages.Register(SPEC))
        assert one.payloads[index] == [b"payload"]
    assert nodes[1].heard.count(messages.GetRegistrations(["m"], True)) == 1
    assert fleet.sync() == []


def test_sync_does_nothing_when_nodes_disagree(nodes: list[Node], fleet: FleetClient) -> None:
    nodes[0].models["m"] = "other"
    nodes[1].models["m"] = registration_digest(SPEC, [b"payload"])
    with pytest.raises(FleetError, match=r"m: .*source="):
        fleet.sync()
    assert [one.changes() for one in nodes] == [[], [], []]
    steps = fleet.sync(nodes[1].path, progress=False)
    assert nodes[0].changes() == [messages.Register(SPEC, replace=True)]
    assert len(steps) == 2


def test_sync_refuses_a_payload_that_does_not_match_its_digest(
    nodes: list[Node], fleet: FleetClient
) -> None:
    nodes[1].models["m"] = registration_digest(SPEC, [b"another"])
    with pytest.raises(FleetError, match="a model 'm' that does not match its digest"):
        fleet.sync(progress=False)
    assert [one.changes() for one in nodes] == [[], [], []]


def test_sync_waits_for_a_rollout(nodes: list[Node], fleet: FleetClient) -> None:
    nodes[0].models["m"] = "new"
    spec = msgspec.structs.replace(SPEC, lease=messages.Lease("t"))
    nodes[0].answers[messages.GetRegistrations] = lambda _: [
        messages.Registrations([messages.KeptRegistration(spec, "new")])
    ]
    with pytest.raises(FleetError, match="m is provisional"):
        fleet.sync()
    assert [one.changes() for one in nodes] == [[], [], []]


def test_a_canary_needs_a_version_to_compare_with(nodes: list[Node], fleet: FleetClient) -> None:
    with pytest.raises(PyTritonBadParameterError, match="replace=True"):
        register(fleet, canary=0.1)
    nodes[0].models["m"] = "old"
    with pytest.raises(ModelNotFoundError, match=f"{nodes[1].path}, {nodes[2].path}, so there"):
        register(fleet, canary=0.1, replace=True)
    assert [one.changes() for one in nodes] == [[], [], []]


def test_views_omit_a_node_that_is_down(nodes: list[Node], fleet: FleetClient) -> None:
    nodes[0].models["m"] = nodes[1].models["m"] = "same"
    nodes[1].die()
    by_node = {one.node: one for one in fleet.status()}
    assert "No daemon is running" in by_node[nodes[1].path].error
    assert by_node[nodes[0].path].status is not None
    (model,) = fleet.models()
    assert (model.name, list(model.by_node)) == ("m", [nodes[0].path])
    assert model.missing == [nodes[2].path]
    for one in (nodes[0], nodes[2]):
        one.die()
    with pytest.raises(DaemonNotRunningError, match="No node answers"):
        fleet.models()


def test_logs_are_merged_by_time(nodes: list[Node], fleet: FleetClient) -> None:
    for second, one in enumerate(nodes):
        one.lines = [
            json.dumps({"timestamp": f"2026-01-01T00:0{minute}:0{second}", "event": f"{minute}"})
            for minute in range(2)
        ]
    nodes[0].lines.insert(0, "no record")
    found = [json.loads(line) for line in fleet.logs(lines=4)]
    assert [one["event"] for one in found] == ["0", "1", "1", "1"]
    assert [one["node"] for one in found] == [nodes[2].path, *(one.path for one in nodes)]
    assert cast(str, json.loads(fleet.logs()[0])["event"]) == "no record"


def test_nodes_and_a_runtime_directory_exclude_each_other() -> None:
    with pytest.raises(PyTritonBadParameterError, match="either runtime_dir"):
        connect("/run/x", nodes=["/run/y"])  # type: ignore[call-overload]
