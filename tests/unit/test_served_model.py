"""A client's handle of a model: when the model counts as ready, and the error if it never will be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pytriton import served_model
from pytriton._protocol import messages
from pytriton.exceptions import PyTritonDaemonError
from pytriton.served_model import Model


class Client:
    """Returns one state of the daemon after another, and the last one forever."""

    def __init__(self, *history: tuple[str, messages.ModelInfo]) -> None:
        self.history = list(history)
        self.asked = 0

    def status(self) -> Any:
        server, info = self.history.pop(0) if len(self.history) > 1 else self.history[0]
        self.asked += 1
        return messages.Status(
            "0", 1, "py", "dir", "ready", 0.0, messages.ServerInfo(server, 2), [info]
        )

    def model_info(self, name: str, among: Sequence[messages.ModelInfo]) -> messages.ModelInfo:
        return among[0]


def info(state: str, *instances: str, served_by: str = "workers") -> messages.ModelInfo:
    made = [
        messages.InstanceInfo(
            index, one, None, last_exit="killed by SIGKILL" if one == "failed" else None
        )
        for index, one in enumerate(instances)
    ]
    return messages.ModelInfo("m", 1, state, made, served_by=served_by)


def wait(*history: tuple[str, messages.ModelInfo], timeout_s: float = 60.0) -> Client:
    client: Any = Client(*history)
    Model(client, history[0][1]).wait_ready(timeout_s)
    made: Client = client
    return made


READY = ("ready", info("ready", "ready"))


def test_a_suspended_model_is_not_awaited() -> None:
    wait(("ready", info("suspended")))


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_model.time, "sleep", lambda seconds: None)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "before",
    [
        ("starting", info("ready", "ready")),
        ("ready", info("loading", "ready")),
        ("ready", info("ready", "ready", "loading")),
        ("ready", info("restoring")),
        ("ready", info("loading", served_by="tritonserver")),
    ],
)
def test_waiting_continues_while_something_changes(before: tuple[str, messages.ModelInfo]) -> None:
    assert wait(before, before, READY).asked == 3


@pytest.mark.parametrize(
    "ready",
    [
        READY,
        ("ready", info("ready", "ready", "failed")),  # the others serve
        ("ready", info("ready", served_by="tritonserver")),
    ],
)
def test_a_model_is_ready(ready: tuple[str, messages.ModelInfo]) -> None:
    assert wait(ready).asked == 1


def test_a_model_will_not_be_ready() -> None:
    with pytest.raises(PyTritonDaemonError) as caught:
        wait(("ready", info("failed", "failed", "stopped")))
    text = caught.value.message
    assert text.startswith(
        "Model 'm' cannot become ready: instance 0 is failed (killed by SIGKILL)"
    )
    assert text.endswith("instance 1 is stopped. See `pytriton-daemon logs m`.")


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (("starting", info("ready", "ready")), "tritonserver is starting, the model is ready"),
        (("ready", info("ready", "loading")), "instance 0 is loading"),
    ],
)
def test_a_model_is_not_ready_in_time(before: tuple[str, messages.ModelInfo], words: str) -> None:
    with pytest.raises(PyTritonDaemonError, match=f"is not ready after 0 s: .*{words}"):
        wait(before, timeout_s=0.0)
