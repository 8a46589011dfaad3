"""Settings that contradict each other."""

from __future__ import annotations

from typing import Any

import pytest

from pytriton._host.settings.combinations import contradictions
from pytriton._host.settings.declarations import DaemonConfig


def test_the_defaults_contradict_nothing() -> None:
    assert contradictions(DaemonConfig()) == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"load_model": ("m",)}, "load_model needs model_control_mode explicit"),
        ({"model_control_mode": "explicit"}, "needs a model_repository"),
        ({"http_port": 9000, "metrics_port": 9000}, "http_port and metrics_port are both 9000"),
        (
            {"frontend": "native", "http_certificate": "/c"},
            "http_certificate and http_key go together",
        ),
        ({"frontend": "native", "http_client_authorities": "/c"}, "needs http_certificate"),
        (
            {"frontend": "native", "grpc_unix_socket": "/s", "allow_grpc": False},
            "allow_grpc is false",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_contradiction_is_reported_with_its_settings(
    settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        DaemonConfig(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"http_port": 0, "grpc_port": 0, "metrics_port": 0},
        {"http_port": 9000, "grpc_port": 9000, "allow_grpc": False},
        {"model_control_mode": "explicit", "model_repository": ("/r",), "load_model": ("m",)},
    ],
    ids=lambda value: next(iter(value)),
)
def test_apparent_contradictions_are_allowed(settings: dict[str, Any]) -> None:
    assert contradictions(DaemonConfig(**settings)) == []
