"""Events about failed changes of models."""

from __future__ import annotations

import asyncio

import pytest
from fakes.fake_clients import model_spec

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.messages.client import Event
from pytriton.dispatcher.models.deployer import emit_on_failure, emit_on_register_failure
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import Events


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RemoteFailure(ErrorKind.LOAD_FAILED, "no weights"), "no weights"),
        (asyncio.CancelledError(), "its client cancelled it or exited"),
    ],
)
def test_a_failure_is_reported_and_raised(error: BaseException, reason: str) -> None:
    reported: list[Event] = []
    with (
        pytest.raises(type(error)),
        emit_on_failure(
            Events([reported.append]), kinds.REPOSITORY_LOAD_FAILED, "m", {"instances": 2}
        ),
    ):
        raise error
    (event,) = reported
    assert (event.kind, event.model, event.reason) == ("repository_load_failed", "m", reason)
    assert event.numbers == {"instances": 2}


def test_success_emits_no_event() -> None:
    reported: list[Event] = []
    with emit_on_failure(Events([reported.append]), kinds.REPOSITORY_LOAD_FAILED, "m"):
        pass
    assert reported == []


@pytest.mark.parametrize(
    ("replace", "served", "kind"),
    [
        (False, [], "registration_failed"),
        (True, [], "registration_failed"),
        (False, ["m"], "registration_failed"),
        (True, ["m"], "replace_failed"),
    ],
)
def test_a_failed_registration_records_whether_it_was_a_replacement(
    replace: bool, served: list[str], kind: str
) -> None:
    reported: list[Event] = []
    request = messages.Register(model_spec("m"), replace=replace)
    failure = RemoteFailure(ErrorKind.INVALID, "no")
    with (
        pytest.raises(RemoteFailure),
        emit_on_register_failure(Events([reported.append]), request, served),
    ):
        raise failure
    assert [one.kind for one in reported] == [kind]
