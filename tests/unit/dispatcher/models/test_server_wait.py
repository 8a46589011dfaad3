"""A request that waits for a tritonserver which never starts; test_registration_histories.py has the other waits."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.models.persistence.restorer import Restorer
from pytriton.dispatcher.models.persistence.state_dir import Content
from pytriton.dispatcher.models.server_wait import ServerWait
from pytriton.dispatcher.runtime.tasks import ChangeSignal


def test_a_stop_ends_the_wait() -> None:
    async def main() -> None:
        server: Any = SimpleNamespace(ready=False, is_stopping=False, changes=ChangeSignal())

        async def stop(event: messages.Progress) -> None:
            server.is_stopping = True
            server.changes.notify()

        nothing = Restorer(Content([], []))
        await ServerWait("model m was not registered", server, nothing, stop, 60.0).until_up()

    with pytest.raises(RemoteFailure, match="model m was not registered: the daemon is stopping"):
        asyncio.run(main())
