"""A daemon whose OpenAI frontend could not reach tritonserver does not start one."""

from __future__ import annotations

from typing import Any

import pytest

from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.openai.state import ApiSettings, ApiState, Upstream
from pytriton.dispatcher.openai.supervisor import OpenAISupervisor


def test_a_frontend_without_upstream_is_refused() -> None:
    anything: Any = None
    state = ApiState(ApiSettings(), Upstream(""))
    frontend = OpenAISupervisor(
        DaemonConfig(), anything, anything, describe=lambda: state, changes=()
    )
    with pytest.raises(
        RemoteFailure, match=r"allow_http = false .* set frontend to native"
    ) as refused:
        frontend.open()
    assert refused.value.kind is ErrorKind.INVALID
    assert frontend.url == ""
