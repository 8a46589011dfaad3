"""The OpenAI API of a daemon that is restoring its models after it was killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from support.real_daemon import FRONT, RunningDaemon, eventually

from pytriton.exceptions import ModelExistsError
from pytriton.openai import ModelCard


def _talk(request: Any) -> Iterator[str]:
    yield "Hello"


def _slow(gate: Path, ends: Path) -> Callable[[], Any]:
    """Return a factory that waits until a file exists, and fails if another one does."""

    def make() -> Any:
        while not gate.exists():
            time.sleep(0.01)
        if ends.exists():
            raise ValueError("its weights have gone")
        return _talk

    return make


@pytest.mark.timeout(400)  # it starts two daemons
def test_a_model_that_is_being_restored_is_not_unknown(tmp_path: Path) -> None:
    gate, ends = tmp_path / "gate", tmp_path / "ends"
    gate.touch()
    settings = {"state_dir": str(tmp_path / "state")}
    with RunningDaemon.start(**settings) as daemon:
        register = daemon.client.register
        register(_talk, "quick", openai="chat", progress=False)
        register(
            _slow(gate, tmp_path / "no file"), "slow", openai="chat", factory=True, progress=False
        )
        register(_slow(gate, ends), "broken", openai="chat", factory=True, progress=False)
        daemon.stop(signal.SIGKILL)
    gate.unlink()
    ends.touch()
    with RunningDaemon.start(**settings) as daemon:
        eventually(lambda: daemon.client.status().openai_url, "quick is restored")
        url = daemon.client.status().openai_url

        def chat(model: str) -> str:
            asked: Any = [{"role": "user", "content": "?"}]
            with openai.OpenAI(base_url=url, api_key="x", max_retries=0, timeout=100) as client:
                try:
                    answer = client.chat.completions.create(model=model, messages=asked)
                except openai.APIStatusError as error:
                    return f"{error.status_code}, retry: {'retry-after' in error.response.headers}"
                return answer.choices[0].message.content or ""

        taken = ModelCard("chat", aliases=["slow"])
        with pytest.raises(ModelExistsError, match="already has the id 'slow'"):
            daemon.client.register(_talk, "other", openai=taken, progress=False)
        with ThreadPoolExecutor(2) as clients:
            waiting = [clients.submit(chat, name) for name in ("slow", "broken")]
            assert [chat("quick"), chat("unknown")] == ["Hello", "404, retry: False"]
            if FRONT == "triton":  # which refuses requests until the model is loaded
                assert [one.result(60) for one in waiting] == [
                    "503, retry: True",
                    "503, retry: True",
                ]
            else:
                assert not any(one.done() for one in waiting)
            gate.touch()
            if FRONT != "triton":
                assert [one.result(60) for one in waiting] == ["Hello", "503, retry: True"]
        eventually(lambda: chat("slow") == "Hello", "slow is restored")
        eventually(lambda: chat("broken") == "404, retry: False", "broken has failed")
