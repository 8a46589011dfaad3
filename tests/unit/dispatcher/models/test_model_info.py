"""Status tells the same of a declaration, whether it serves, waits, or could not be restored."""

from __future__ import annotations

import pytest
from support.fakes.fake_clients import model_spec

from pytriton._protocol import messages
from pytriton.dispatcher.models.model_info import info_of


@pytest.mark.parametrize("state", ["ready", "asleep", "failed"])
def test_what_a_declaration_says_is_told_in_any_state(state: str) -> None:
    trial = messages.Trial("one", 10.0, 0.1)
    spec = model_spec("m", versions=[1, 3], isolation="thread", trial=trial)
    instances = [messages.InstanceInfo(0, "ready", 7)] if state == "ready" else []
    info = info_of(spec, state, 1.5, instances)
    assert (info.name, info.state, info.registered_at) == ("m", state, 1.5)
    assert (info.versions, info.trial, info.isolation) == ([1, 3], trial, "thread")
    assert (info.python, info.version) == (spec.world.python, spec.version)
    assert info.instances == instances
    instances.append(messages.InstanceInfo(1, "starting", None))
    assert len(info.instances) == (state == "ready")  # what was told does not change
