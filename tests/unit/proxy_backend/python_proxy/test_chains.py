"""Chains of calls: cycles, forged chains, and the handle that shows a call's end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
from fakes.fake_dispatcher import FakeDispatcher

from pytriton._protocol import messages
from pytriton._protocol.calls.call_messages import Call, Link
from pytriton._protocol.errors import ErrorKind
from pytriton._protocol.lanes.lane_messages import RequestRef
from pytriton._protocol.parameters import CHAIN_PARAMETER, HANDLE_PARAMETER
from pytriton.proxy_backend.python_proxy import chains
from pytriton.proxy_backend.python_proxy.chains import (
    Circular,
    Handle,
    check_chain,
    has_closed,
    write_failure,
)


def request_of(**parameters: str) -> RequestRef:
    return RequestRef([], json.dumps(parameters) if parameters else "", [])


def call_of(model: str, *chain: Link) -> Call:
    return Call(1, model, -1, [], [], "{}", "", 0, 0, 0, False, list(chain))


@pytest.fixture
def dispatcher() -> Iterator[FakeDispatcher]:
    fake = FakeDispatcher()
    yield fake
    fake.close()


# ── circles ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("worker", ["w1", "w2"])
def test_a_worker_that_waits_for_a_batch_cannot_serve_it(worker: str) -> None:
    chain = [Link("a", "w1"), Link("b", "w2"), Link("c", "")]
    requests = [request_of(), request_of(**{CHAIN_PARAMETER: chains.seal_chain(chain)})]
    with pytest.raises(Circular) as caught:
        check_chain(requests, worker)
    assert caught.value.waiting == ["w1", "w2"]
    assert "max_inflight_batches=1 and more instances" in str(caught.value)


def test_another_worker_can_serve_it(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = [Link("a", "w1"), Link("b", "")]
    request = request_of(**{CHAIN_PARAMETER: chains.seal_chain(chain)})
    requests = [request]
    check_chain(requests, "w2")
    assert requests == [request]  # it is forwarded unchanged


@pytest.mark.parametrize("value", ["made up", "0" * 32 + '[["a","w1"]]'])
def test_an_unsigned_chain_is_not_forwarded(value: str) -> None:
    """A client could claim that a model's worker is waiting."""
    requests = [request_of(**{CHAIN_PARAMETER: value, "kept": "1"})]
    check_chain(requests, "w1")
    parameters = json.loads(requests[0].parameters)
    assert CHAIN_PARAMETER not in parameters
    assert parameters["kept"] == "1"


# ── may a call be made ───────────────────────────────────────────────────────────────────────────


def test_a_call_of_another_model_needs_no_check() -> None:
    assert chains.refusal_of(call_of("b", Link("a", "w1")), "ipc:///nowhere") is None
    # Back to a model whose worker continues with other batches, so nothing deadlocks.
    assert chains.refusal_of(call_of("a", Link("a", "")), "ipc:///nowhere") is None


def test_the_length_of_a_chain_is_limited() -> None:
    chain = [Link(f"m{number}", "") for number in range(17)]
    refusal = chains.refusal_of(call_of("last", *chain), "ipc:///nowhere")
    assert refusal is not None
    assert refusal.startswith("calls are nested more than 16 deep: m0 → m1")
    assert refusal.endswith("m16 → last")
    assert chains.refusal_of(call_of("last", *chain[:16]), "ipc:///nowhere") is None


@pytest.mark.parametrize(
    ("answer", "refusal"),
    [
        (messages.Verdict("fail", "a → b → a"), "a → b → a"),
        (messages.Verdict("retry"), None),
        (messages.Failure(ErrorKind.NOT_FOUND.value, "it is just going"), None),
        (messages.Done(), None),
    ],
)
def test_the_dispatcher_detects_cycles(
    dispatcher: FakeDispatcher, answer: messages.AnyMessage, refusal: str | None
) -> None:
    dispatcher.answers[messages.MayCall] = lambda _: [answer]
    call = call_of("a", Link("a", "w1"), Link("b", ""), Link("c", "w3"))
    assert chains.refusal_of(call, dispatcher.rundir.control_endpoint) == refusal
    assert dispatcher.heard == [messages.MayCall("a", ["a", "b", "c"], ["w1", "w3"])]


def test_waiting_calls_are_reported(dispatcher: FakeDispatcher) -> None:
    reported = messages.StuckCalls(["b"], "they wait for each other")
    dispatcher.answers[messages.CallsWait] = lambda _: [reported]
    assert chains.report_waiting("w", ["b", "c"], dispatcher.rundir.control_endpoint) == reported
    assert dispatcher.heard == [messages.CallsWait(os.getpid(), "w", ["b", "c"])]
    dispatcher.answers[messages.CallsWait] = lambda _: [messages.Failure("internal", "no")]
    nothing = messages.StuckCalls([], "")
    assert chains.report_waiting("w", ["b"], dispatcher.rundir.control_endpoint) == nothing


# ── the handle of a call ─────────────────────────────────────────────────────────────────────────


def test_a_handle_stays_open_while_somebody_waits() -> None:
    handle = Handle()
    name = handle.name()
    assert name.startswith(f"{os.getpid()}:")
    assert not has_closed(name)
    handle.close()
    assert has_closed(name)
    assert handle.name() == ""  # too late
    assert not has_closed("")


def test_a_handle_returns_the_failure() -> None:
    handle = Handle()
    assert handle.failure() is None
    name = handle.name()
    assert handle.failure() is None
    assert write_failure(name, "no such thing: é", "NOT_FOUND")
    assert handle.failure() == ("no such thing: é", "NOT_FOUND")
    handle.close()
    assert not write_failure(name, "too late", "INTERNAL")
    assert not write_failure("", "nobody has asked", "INTERNAL")


def test_a_forged_handle_opens_nothing(tmp_path: object) -> None:
    handle = Handle()
    process, number, token = handle.name().split(":")
    wrong_token = f"{process}:{number}:{'0' * len(token)}"
    with open(os.devnull) as other:
        names = [wrong_token, f"{process}:{other.fileno()}:{token}", f"x:{number}:{token}", "7"]
        descriptors = len(os.listdir("/proc/self/fd"))
        for name in names:
            assert has_closed(name)
            assert not write_failure(name, "text", "INTERNAL")
    assert handle.failure() is None
    assert len(os.listdir("/proc/self/fd")) < descriptors  # without `other`
    handle.close()


def test_the_handles_of_a_batch() -> None:
    with_one = request_of(**{HANDLE_PARAMETER: "1:2:ab"})
    assert chains.handles([request_of(), request_of(a="b")]) == []
    odd = [
        RequestRef([], parameters, [])
        for parameters in (
            f'["{HANDLE_PARAMETER}"]',
            f"{{{HANDLE_PARAMETER}",
            f'{{"{HANDLE_PARAMETER}": 3}}',
        )
    ]
    assert chains.handles([request_of(), with_one, *odd]) == ["", "1:2:ab", "", "", ""]
