"""Which frontend serves, depending on the settings."""

from __future__ import annotations

from typing import Any

import pytest

from pytriton._host.settings import frontend_choice
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._host.settings.triton_options import LATER, SINGLE

_OLD = {"tritonserver_options": {"grpc-max-connection-age": "1000", "log-verbose": "1"}}


@pytest.mark.parametrize(
    ("settings", "frontend"),
    [
        ({}, "auto"),
        ({"frontend": "triton"}, "triton"),
        ({"frontend": "native"}, "native"),
        (_OLD, "triton"),
        ({"frontend": "triton", **_OLD}, "triton"),
        ({"frontend_limit": ("streams=2",)}, "native"),
        ({"http_unix_socket": "/s"}, "native"),
        ({"http_certificate": "/c", "http_key": "/k"}, "native"),
        ({"tritonserver_options": {"http-thread-count": "4", "log-verbose": "1"}}, "auto"),
        ({"tritonserver_options": {"allow-sagemaker": "true"}}, "auto"),
        ({"tritonserver_options": {"http-max-input-size": "1000000000"}}, "auto"),
        ({"tritonserver_options": {"grpc-infer-thread-count": "4"}}, "auto"),
        ({"tritonserver_options": {"quantum-tunnels": "9"}}, "triton"),
    ],
)
def test_the_chosen_frontend_supports_the_settings(settings: dict[str, Any], frontend: str) -> None:
    assert frontend_choice.chosen(DaemonConfig(**settings)) == frontend


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"frontend": "native", **_OLD}, "grpc-max-connection-age in .* but frontend = native requires it"),
        ({"grpc_unix_socket": "/s", **_OLD}, "grpc-max-connection-age in .* but grpc_unix_socket requires it"),
        ({"frontend": "triton", "http_unix_socket": "/s"}, "http_unix_socket: not supported by NVIDIA's executable"),
        ({"frontend": "triton", "frontend_limit": ("streams=2",)}, "frontend_limit: not supported by NVIDIA's executable"),
    ],
)  # fmt: skip
def test_settings_that_no_frontend_supports_together_are_refused(
    settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        DaemonConfig(**settings)


def test_every_option_is_assigned_to_a_frontend() -> None:
    """Options that tritonserver gains later go to NVIDIA's frontend until somebody decides."""
    ours = frontend_choice._SHARED | frontend_choice.INWARD
    assert ours <= SINGLE | LATER
    assert all(name.startswith(frontend_choice.FRONTENDS) for name in ours)
