"""Settings of the OpenAI frontend: what is taken, and that a page's browser and they mean the same origin."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from multidict import CIMultiDict

from pytriton._host.settings.declarations import DaemonConfig, OpenAISettings, options
from pytriton.dispatcher.openai.browsers import headers_for_pages


@pytest.mark.parametrize(
    ("written", "origin"),
    [
        ("https://chat.example/", "https://chat.example"),
        ("https://Chat.Example:443", "https://chat.example"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("*", "https://anybody"),
    ],
)
def test_a_page_may_ask_however_its_origin_is_written(written: str, origin: str) -> None:
    """A browser writes it in one way, and settings that are written in another let nobody in."""
    allowed = options()["openai_cors_origin"].kind.read(written)
    asked: Any = SimpleNamespace(method="GET", headers=CIMultiDict({"Origin": origin}))
    assert headers_for_pages(asked, allowed)["Access-Control-Allow-Origin"] == origin


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("openai_cors_origin", ("chat.example",)),
        ("openai_port", 65536),
        ("openai_max_requests", 0),
        ("openai_keepalive_s", -1.0),
        ("openai_timeout_s", float("inf")),
        ("openai_max_body_size", -1),
        ("openai_address", "two words"),
    ],
)
def test_impossible_openai_settings_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        DaemonConfig(**{name: value})  # type: ignore[arg-type]  # that is what is tried


def test_all_of_them_are_named_after_it() -> None:
    """Else nobody finds them among those of tritonserver."""
    assert all(name.startswith("openai_") for name in OpenAISettings.__annotations__)
