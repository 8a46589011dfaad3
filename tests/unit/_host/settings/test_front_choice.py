"""Which front serves, by what the settings ask for."""

from __future__ import annotations

from typing import Any

import pytest

from pytriton._host.settings import front_choice
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._host.settings.triton_options import LATER, SINGLE

_OLD = {"tritonserver_options": {"grpc-max-connection-age": "1000", "log-verbose": "1"}}


@pytest.mark.parametrize(
    ("settings", "front"),
    [
        ({}, "auto"),
        ({"front": "triton"}, "triton"),
        ({"front": "native"}, "native"),
        (_OLD, "triton"),
        ({"front": "triton", **_OLD}, "triton"),
        ({"front_limit": ("streams=2",)}, "native"),
        ({"http_unix": "/s"}, "native"),
        ({"http_certificate": "/c", "http_key": "/k"}, "native"),
        ({"tritonserver_options": {"http-thread-count": "4", "log-verbose": "1"}}, "auto"),
        ({"tritonserver_options": {"allow-sagemaker": "true"}}, "auto"),
        ({"tritonserver_options": {"http-max-input-size": "1000000000"}}, "auto"),
        ({"tritonserver_options": {"grpc-infer-thread-count": "4"}}, "auto"),
        ({"tritonserver_options": {"quantum-tunnels": "9"}}, "triton"),
    ],
)
def test_the_front_has_what_the_settings_ask_for(settings: dict[str, Any], front: str) -> None:
    assert front_choice.chosen(DaemonConfig(**settings)) == front


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"front": "native", **_OLD}, "grpc-max-connection-age of .* which front = native requires"),
        ({"grpc_unix": "/s", **_OLD}, "grpc-max-connection-age of .* which grpc_unix requires"),
        ({"front": "triton", "http_unix": "/s"}, "http_unix: not supported by NVIDIA's executable"),
        ({"front": "triton", "front_limit": ("streams=2",)}, "front_limit: not supported by NVIDIA's executable"),
    ],
)  # fmt: skip
def test_what_no_front_has_together_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DaemonConfig(**settings)


def test_each_option_of_the_frontends_is_decided_on() -> None:
    """Options that tritonserver gains later go to NVIDIA's front until somebody decides."""
    ours = front_choice._SHARED | front_choice.INWARD
    assert ours <= SINGLE | LATER
    assert all(name.startswith(front_choice.FRONTENDS) for name in ours)
