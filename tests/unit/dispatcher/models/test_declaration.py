"""Status shows the same declaration, whether a model serves, waits, or failed to be restored."""

from __future__ import annotations

import pytest
from fakes.fake_clients import model_spec

from pytriton._protocol import messages
from pytriton.dispatcher.models.declaration import info_of


@pytest.mark.parametrize("state", ["ready", "suspended", "failed"])
def test_declared_fields_are_shown_in_every_state(state: str) -> None:
    lease = messages.Lease("one", 10.0, 0.1)
    spec = model_spec("m", versions=[1, 3], isolation="thread", lease=lease)
    instances = [messages.InstanceInfo(0, "ready", 7)] if state == "ready" else []
    info = info_of(spec, state, 1.5, instances)
    assert (info.name, info.state, info.registered_at) == ("m", state, 1.5)
    assert (info.versions, info.lease, info.isolation) == ([1, 3], lease, "thread")
    assert (info.python, info.version) == (spec.world.python, spec.version)
    assert info.instances == instances
    instances.append(messages.InstanceInfo(1, "starting", None))
    assert len(info.instances) == (state == "ready")  # the declaration does not change
