"""Whether Vertex AI's frontend is wanted, and for which model."""

from __future__ import annotations

import pytest

from pytriton.dispatcher.triton import vertex_stand_in


@pytest.mark.parametrize(
    ("options", "model"),
    [
        ({}, None),
        ({"vertex-ai-default-model": "m"}, None),
        ({"allow-vertex-ai": "true"}, None),
        ({"allow-vertex-ai": "true", "vertex-ai-default-model": ""}, None),
        ({"allow-vertex-ai": "false", "vertex-ai-default-model": "m"}, None),
        ({"allow-vertex-ai": "true", "vertex-ai-default-model": "m"}, "m"),
    ],
)
def test_it_takes_both_options(options: dict[str, str], model: str | None) -> None:
    assert vertex_stand_in.wanted(options) == model
