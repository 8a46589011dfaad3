"""Changes of models that fail, as events."""

from __future__ import annotations

import asyncio

import pytest
from support.fakes.fake_clients import model_spec

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.messages.events import Event
from pytriton.dispatcher.models.failure_events import failure_told, registration_told
from pytriton.dispatcher.telemetry.events import kinds
from pytriton.dispatcher.telemetry.events.events import Events


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RemoteFailure(ErrorKind.LOAD_FAILED, "no weights"), "no weights"),
        (asyncio.CancelledError(), "its client cancelled it or exited"),
    ],
)
def test_a_failure_is_told_and_goes_on(error: BaseException, reason: str) -> None:
    told: list[Event] = []
    with (
        pytest.raises(type(error)),
        failure_told(Events([told.append]), kinds.NOT_LOADED, "m", {"instances": 2}),
    ):
        raise error
    (event,) = told
    assert (event.kind, event.model, event.reason) == ("not_loaded", "m", reason)
    assert event.numbers == {"instances": 2}


def test_what_goes_well_is_not_told() -> None:
    told: list[Event] = []
    with failure_told(Events([told.append]), kinds.NOT_LOADED, "m"):
        pass
    assert told == []


@pytest.mark.parametrize(
    ("replace", "served", "kind"),
    [
        (False, [], "not_registered"),
        (True, [], "not_registered"),
        (False, ["m"], "not_registered"),
        (True, ["m"], "not_replaced"),
    ],
)
def test_a_registration_that_fails_says_whether_it_was_to_replace(
    replace: bool, served: list[str], kind: str
) -> None:
    told: list[Event] = []
    request = messages.Register(model_spec("m"), replace=replace)
    failure = RemoteFailure(ErrorKind.INVALID, "no")
    with pytest.raises(RemoteFailure), registration_told(Events([told.append]), request, served):
        raise failure
    assert [one.kind for one in told] == [kind]
