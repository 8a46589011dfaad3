"""The snapshot that one version of the daemon leaves for the next: read back unchanged, or refused."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from pytriton._protocol import messages
from pytriton._protocol.lanes import stats_page
from pytriton._protocol.lanes.stats_page import NOTHING
from pytriton._protocol.lanes.user_series import Family
from pytriton.dispatcher.scaling.memory_policy import KnownSize
from pytriton.dispatcher.upgrade import snapshot
from pytriton.dispatcher.upgrade.snapshot import HandOver, UnusableHandOver

WORKER = snapshot.WorkerState(
    "w7",
    snapshot.ChildState(70, 7, b"half", ["said"]),
    8,
    "/l/w7",
    1.5,
    messages.PROTOCOL,
)
STATE = HandOver(
    config=b'{"http_port":9000}',
    upgrades=2,
    versions=["1.0", "1.1"],
    protocol=messages.PROTOCOL,
    page=stats_page.LAYOUT,
    started_at=1.5,
    locks=(3, 4),
    control=5,
    control_tcp="",
    helper=(60, 6),
    regions="pytriton-1-ab-",
    serials=(7, 2),
    server=snapshot.ServerSnapshot(
        snapshot.ChildState(80, 9),
        1,
        snapshot.ListenerState("admin", 10, "/run/frontend-1.sock"),
        [snapshot.ListenerState("http", 11)],
        messages.PROTOCOL,
        16,
        {"exited": 1},
    ),
    registrations=[
        snapshot.RegistrationState(
            "m#2",
            messages.ModelSpec(
                "m", 1, {"input": [{"name": "x"}]}, messages.WorkerEnvironment("python")
            ),
            1.5,
            False,
            [b"\x80payload"],
            "ready",
            snapshot.PoolState(
                [
                    snapshot.SupervisedState(0, WORKER, 3, "it crashed"),
                    snapshot.SupervisedState(1),
                ],
                {"m_0": "w7", "m_1": ""},
            ),
            owner=90,
        )
    ],
    counters=[
        snapshot.ModelCountersState(
            "m",
            [
                snapshot.InstanceCountersState(
                    1,
                    0,
                    list(NOTHING),
                    {"crash": 1},
                    2,
                    {"seen": Family("counter", "", {(("a", "b"),): {("_total", ""): 1.0}})},
                )
            ],
            failed={"lost": 1},
        )
    ],
    repositories=snapshot.RepositoriesState([]),
    management=[12],
    beginnings=(5, [("calls", (("model", "m"),), 7.0, 3)]),
    openai=snapshot.OpenAIState(13, snapshot.ChildState(100, 14), 15),
    unposted={"hook": [messages.Event(1, 1.5, "started")]},
    sizes={"m": KnownSize("1.5", 1000, 0, {"digest": 7})},
)


def _with_worker(state: HandOver, **change: object) -> snapshot.RegistrationState:
    """Return its registration, with another worker."""
    (one,) = state.registrations
    worker = msgspec.structs.replace(WORKER, **change)
    pool = msgspec.structs.replace(
        one.pool,
        supervised=[
            snapshot.SupervisedState(0, worker, 3, "it crashed"),
            snapshot.SupervisedState(1),
        ],
    )
    return msgspec.structs.replace(one, pool=pool)


def plain(state: HandOver) -> object:
    """Return it as data without the difference between tuples and lists."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(state))


def test_written_values_are_read_back() -> None:
    assert plain(snapshot.decode(snapshot.encode(STATE))) == plain(STATE)
    assert snapshot.read(snapshot.in_memory(b"document")) == b"document"


def test_all_descriptors_are_listed() -> None:
    assert sorted(snapshot.descriptors(STATE)) == list(range(3, 17))


def test_a_child_without_an_output_has_no_descriptor() -> None:
    state = snapshot.OpenAIState(13, snapshot.ChildState(100, -1), 15)
    found = snapshot.descriptors(msgspec.structs.replace(STATE, openai=state))
    assert sorted(found) == [*range(3, 14), 15, 16]


def test_a_fresh_start_reads_what_it_needs_of_any_document() -> None:
    left = snapshot.remains(snapshot.encode(STATE))
    assert (left.config, left.helper) == (STATE.config, STATE.helper)
    assert left.listeners == STATE.server.listeners
    other = msgspec.msgpack.encode({"config": b"{}", "helper": [60, 6], "server": "of its own"})
    left = snapshot.remains(b"pytriton-hand-over 99\n" + other)
    assert (left.config, left.helper, left.listeners) == (b"{}", (60, 6), [])
    with pytest.raises(UnusableHandOver, match="cannot be read"):
        snapshot.remains(b"pytriton-hand-over 1\nxy")


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b"", "not written by a daemon"),
        (b"pytriton-registration 1 ab\nxy", "not written by a daemon"),
        (b"pytriton-hand-over 99\nxy", "snapshot format 99, but this release reads format 1"),
        (snapshot.encode(STATE)[:-9], "cannot be read"),
    ],
)
def test_unreadable_snapshots_are_refused(document: bytes, why: str) -> None:
    with pytest.raises(UnusableHandOver, match=why):
        snapshot.decode(document)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"registrations": [_with_worker(STATE, protocol=3)]},
            r"workers of m speak protocol 3; this version serves protocol \d+\. .*in between.*restart",
        ),
        (
            {"server": msgspec.structs.replace(STATE.server, protocol=3)},
            "the proxies in tritonserver speak protocol 3; this version serves",
        ),
        ({"page": "other"}, r"cannot read the statistics pages.*pytriton-daemon restart"),
    ],
)
def test_workers_that_this_version_cannot_serve_are_refused(
    change: dict[str, object], why: str
) -> None:
    with pytest.raises(UnusableHandOver, match=why):
        snapshot.decode(snapshot.encode(msgspec.structs.replace(STATE, **change)))


def test_only_intended_descriptors_survive_execve() -> None:
    reader, writer = os.pipe()
    try:
        with snapshot.inherited([writer]):
            assert [os.get_inheritable(one) for one in (reader, writer)] == [False, True]
        assert not os.get_inheritable(writer)
    finally:
        os.close(reader)
        os.close(writer)
    with pytest.raises(OSError, match="Bad file descriptor"):
        snapshot.keep_from_children([writer])


def test_another_version_checks_whether_it_can_take_over() -> None:
    """It reads the snapshot from standard input in a new process."""
    said = subprocess.run(
        [sys.executable, "-m", "pytriton.dispatcher", "--can-take-over"],
        input=b"pytriton-hand-over 99\nxy",
        stdout=subprocess.PIPE,
        check=True,
        timeout=100,
    ).stdout
    verdict = msgspec.json.decode(said)
    assert not verdict["can"]
    assert "format 99" in verdict["why"]
    assert verdict["version"]
