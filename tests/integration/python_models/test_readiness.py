"""`is_ready` of a Triton Python model: awaited at the start, probed while it serves, visible to users."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models.model_folders import CONFIG, ask, make_model
from support.models.stream_client import Streaming
from support.real_daemon import ANSWER_S, RunningDaemon, eventually

from pytriton.daemon import connect
from pytriton.exceptions import RegistrationError

#: Ready while a file says so for its instance.
IS_READY = """
    def is_ready(self):
        said = open(os.path.join(FOLDER, self.args["model_instance_name"])).read()
        if said == "raise":
            raise OSError("the database is gone")
        return said == "yes"
"""

#: Tells which instance it is, and when a file is there, that it has come to its end.
STREAMING = """
    def execute(self, requests):
        import threading
        for request in requests:
            threading.Thread(target=self.answer, args=(request.get_response_sender(),)).start()

    def answer(self, sender):
        import time
        self.send(sender, self.args["model_instance_name"], 0)
        while not os.path.exists(os.path.join(FOLDER, "go")):
            time.sleep(0.02)
        self.send(sender, "end", pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def send(self, sender, told, flags):
        told = pb_utils.Tensor("told", np.array([told.encode()], np.object_))
        sender.send(pb_utils.InferenceResponse([told]), flags)
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon.start(not_ready_after_s=0.5) as running:
        yield running


def health(daemon: RunningDaemon, model: str) -> int:
    """Return the HTTP status of the model's readiness in tritonserver."""
    try:
        with urllib.request.urlopen(f"http://{daemon.http}/v2/models/{model}/ready") as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def say(answers: Path, instance: str, text: str) -> None:
    """Change an instance's answer atomically, since it may be reading it."""
    new = answers.parent / f"new-{instance}"
    new.write_text(text)
    new.rename(answers / instance)


def make(folder: Path, answers: Path, more: str = IS_READY, config: str = CONFIG) -> Path:
    return make_model(folder, more=more.replace("FOLDER", repr(str(answers))), config=config)


def test_requests_go_to_the_ready_one_of_two_instances(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    answers = tmp_path / "answers"
    answers.mkdir()
    for instance in ("moody_0_0", "moody_0_1"):
        say(answers, instance, "yes")
    config = CONFIG + "instance_group [ { kind: KIND_CPU count: 2 } ]\n"
    model = daemon.client.register_model(make(tmp_path / "moody", answers, config=config))

    def states() -> list[str]:
        return [one.state for one in model.instances]

    assert states() == ["ready", "ready"]
    say(answers, "moody_0_0", "no")
    eventually(lambda: states() == ["not_ready", "ready"], lambda: str(states()))
    name = "self.args['model_instance_name']"
    # A proxy sees that its lane is closed when it has a batch.
    eventually(
        lambda: ask(daemon, "moody", name) and model.instances[0].lanes == 0,
        "its proxies have gone over",
    )
    assert {ask(daemon, "moody", name) for _ in range(20)} == {"moody_0_1"}
    assert health(daemon, "moody") == 200
    say(answers, "moody_0_1", "raise")
    eventually(lambda: health(daemon, "moody") == 400, "the model is not ready")
    assert model.info().state == "not_ready"
    lines = [json.loads(line) for line in daemon.client.logs("moody")]
    assert any("the database is gone" in one["event"] for one in lines)
    assert "is_ready() raised OSError: the database is gone" in daemon.said()
    for instance in ("moody_0_0", "moody_0_1"):
        say(answers, instance, "yes")
    eventually(lambda: health(daemon, "moody") == 200, "the model is ready again")
    model.wait_ready()
    assert {ask(daemon, "moody", "6 * 7") for _ in range(10)} == {"42"}
    assert sum(one.restarts for one in model.instances) == 0


def test_a_registration_waits_for_is_ready(daemon: RunningDaemon, tmp_path: Path) -> None:
    later = make_model(
        tmp_path / "later",
        initialize="self.asked = 0",
        more="    async def is_ready(self):\n"
        "        self.asked += 1\n"
        "        return self.asked > 2\n",
    )
    daemon.client.register_model(later)
    assert int(ask(daemon, "later", "self.asked")) > 2
    never = make_model(tmp_path / "never", more="    def is_ready(self):\n        return False\n")
    wrong = make_model(tmp_path / "wrong", more="    def is_ready(self):\n        return 'yes'\n")
    with ThreadPoolExecutor(2) as threads:
        reasons = list(threads.map(partial(load_failure, daemon), (never, wrong)))
    assert "is_ready() returned False" in reasons[0]
    assert "returned str 'yes', which is not a bool" in reasons[1]


def load_failure(daemon: RunningDaemon, folder: Path) -> str:
    """Register a model that never becomes ready; return the error.

    The worker gives the reason shortly before the timeout. If it gets no core at that time, the dispatcher's timeout
    expires first, and the reason is in the worker's last lines.
    """
    with (
        connect(daemon.config.runtime_dir, ANSWER_S) as client,
        pytest.raises(RegistrationError, match="load_timeout_s") as failed,
    ):
        client.register_model(folder, load_timeout_s=12.0)
    return f"{failed.value}\n{failed.value.remote_traceback}"


def test_an_is_ready_that_does_not_return_means_not_ready(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    answers = tmp_path / "answers"
    answers.mkdir()
    slow = """
    def is_ready(self):
        import time
        while os.path.exists(os.path.join(FOLDER, "hang")):
            time.sleep(0.1)
        return True
"""
    model = daemon.client.register_model(make(tmp_path / "hanging", answers, slow))
    (answers / "hang").touch()
    eventually(lambda: health(daemon, "hanging") == 400, "the model is not ready")
    assert "is_ready() has not returned for 5 s" in daemon.said()
    (answers / "hang").unlink()
    model.wait_ready()
    assert health(daemon, "hanging") == 200


def test_streams_in_progress_finish_on_an_instance_that_is_not_ready(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    answers = tmp_path / "answers"
    answers.mkdir()
    for instance in ("streaming_0_0", "streaming_0_1"):
        say(answers, instance, "yes")
    config = CONFIG + "model_transaction_policy { decoupled: true }\n"
    config += "instance_group [ { kind: KIND_CPU count: 2 } ]\n"
    folder = make(tmp_path / "streaming", answers, STREAMING + IS_READY, config)
    model = daemon.client.register_model(folder)
    reported: list[Iterator[Any]] = []
    first: set[str] = set()
    with ExitStack() as streams:
        # Each is taken at once and answered later, so one instance may well take several of them.
        while first != {"streaming_0_0", "streaming_0_1"} and len(reported) < 50:
            stream = Streaming(daemon.grpc, "streaming", {"what": np.array([b"x"], np.object_)})
            reported.append(iter(streams.enter_context(stream)))
            first.add(str(next(reported[-1])["told"][0].decode()))
        say(answers, "streaming_0_0", "no")
        eventually(
            lambda: [one.state for one in model.instances] == ["not_ready", "ready"],
            "it is not ready",
        )
        (answers / "go").touch()
        rests = [[str(rest["told"][0].decode()) for rest in one] for one in reported]
        assert rests == [["end"]] * len(reported)
    assert first == {"streaming_0_0", "streaming_0_1"}
    assert sum(one.restarts for one in model.instances) == 0
