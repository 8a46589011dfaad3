"""What is said of a variable that stayed where the model was registered."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pytriton.worker.missing_variables import explain_missing


@pytest.fixture
def environment() -> Iterator[None]:
    before = os.environ.__class__
    yield
    os.environ.__class__ = before


@pytest.mark.usefixtures("environment")
def test_the_error_says_why_it_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    explain_missing(["STAYED_KEY"])
    with pytest.raises(KeyError) as caught:
        os.environ["STAYED_KEY"]
    assert "was not forwarded" in str(caught.value)
    assert "register(..., env=['STAYED_KEY'])" in str(caught.value)
    assert caught.value.args[0] == "STAYED_KEY"
    with pytest.raises(KeyError) as other:
        os.environ["NEVER_THERE"]
    assert str(other.value) == "'NEVER_THERE'"
    monkeypatch.setenv("STAYED_KEY", "x")
    assert os.environ["STAYED_KEY"] == "x"
    assert os.environ.get("NEVER_THERE") is None
