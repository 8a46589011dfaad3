"""Persisted models after `start --detach`: the progress of their restores, and waiting for them."""

from __future__ import annotations

import msgspec
import pytest
from fakes.fake_dispatcher import status

from pytriton._cli.errors import CliError
from pytriton._cli.persisted_models import progress, remarks, wait_until_restored
from pytriton._protocol import messages
from pytriton._protocol.exit_codes import ExitCode


def said(*states: str) -> messages.Status:
    models = [
        messages.ModelInfo(f"m{number}", 1, state, [], error="why")
        for number, state in enumerate(states)
    ]
    return msgspec.structs.replace(status(), models=models)


@pytest.mark.parametrize(
    ("states", "texts"),
    [
        ((), []),
        (("ready", "resuming"), []),
        (("restoring",), ["1 model is being loaded"]),
        (("restoring", "restoring", "suspended"), ["2 models are being", "1 model is suspended"]),
        (("loading", "restoring"), ["2 models are being loaded"]),
        (("loading",), ["1 model is being loaded: `pytriton-daemon status` shows them"]),
        (("failed", "ready"), ["1 model is not served"]),
        (("suspended",) * 1000, ["1,000 models are suspended"]),
    ],
)
def test_progress_of_restores_is_shown(states: tuple[str, ...], texts: list[str]) -> None:
    reported = list(remarks(said(*states)))
    assert len(reported) == len(texts)
    assert all(one.startswith(text) for one, text in zip(reported, texts))


def test_start_waits_until_no_model_is_being_restored() -> None:
    answers = [
        said("restoring", "restoring"),
        said("ready", "restoring"),
        said("ready", "suspended"),
    ]
    pauses: list[float] = []
    last = answers[-1]
    assert wait_until_restored(answers.pop(0), lambda: answers.pop(0), pauses.append) is last
    assert len(pauses) == 2


def test_the_awaited_load_is_reported() -> None:
    """Report on every change, and occasionally while nothing changes."""
    loads = [said("ready", "restoring", "restoring", "failed") for _ in range(100)]
    done = said("ready", "ready", "restoring", "failed"), said("ready", "ready", "ready", "ready")
    answers = [*loads, *done]
    lines: list[str] = []
    wait_until_restored(answers.pop(0), lambda: answers.pop(0), lambda seconds: None, lines.append)
    first = "1 of 4 models are available; 1 failed; 2 more to load"
    assert lines == [first, first, "2 of 4 models are available; 1 failed; 1 more to load"]


@pytest.mark.parametrize(
    ("since", "text"),
    [
        ({}, "1 of 6 models are available; 5 more to load"),
        ({"m1": 58.0}, "1 of 6 models are available; loading m1 for 42 s; 4 more to load"),
        (
            {"m1": 90.0, "m2": 28.0, "m3": 99.0, "m4": 95.0, "m5": 99.0},
            "1 of 6 models are available; loading m2 for 1 min 12 s, m1 for 10 s, m4 for 5 s and 2 more",
        ),
    ],
)
def test_loading_models_are_named_with_their_durations(since: dict[str, float], text: str) -> None:
    models = [
        msgspec.structs.replace(model, loading_since=since.get(model.name, 0.0))
        for model in said("ready", *["restoring"] * 5).models
    ]
    assert progress(models, 100.0) == text
    assert progress(said("ready", "failed").models, 100.0) == ""


def test_models_that_could_not_be_restored_are_named() -> None:
    with pytest.raises(CliError, match=r"m1: why") as failure:
        wait_until_restored(said("ready", "failed"), lambda: said(), lambda seconds: None)
    assert failure.value.code == ExitCode.REGISTRATION_FAILED
