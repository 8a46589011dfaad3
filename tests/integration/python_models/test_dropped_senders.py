"""Triton Python models that drop a response sender before its final response: their clients get an error.

This is the most common mistake with decoupled models. With Triton's python backend, the client waits until it times
out.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from support.models.inference import Inference
from support.models.model_folders import CONFIG, make_model
from support.models.stream_client import Streaming
from support.real_daemon import RunningDaemon
from tritonclient.utils import InferenceServerException

DECOUPLED = CONFIG + "model_transaction_policy { decoupled: true }\n"
#: Answers each request as its text says, and forgets the end.
FORGETFUL = """
import asyncio, threading
import numpy as np
import triton_python_backend_utils as pb_utils

def response(told):
    return pb_utils.InferenceResponse([pb_utils.Tensor("told", np.array([told.encode()], np.object_))])

def twice(sender):
    for told in ("one", "two"):
        sender.send(response(told))

class TritonPythonModel:
    def execute(self, requests):
        while requests:  # the list is its own
            request = requests.pop()
            what = pb_utils.get_input_tensor_by_name(request, "what").as_numpy()[0].decode()
            if what == "thread":
                threading.Thread(target=twice, args=[request.get_response_sender()]).start()
            elif what == "here":
                twice(request.get_response_sender())
            elif what == "asks":
                request.get_response_sender()
            elif what == "answers":
                request.get_response_sender().send(response("all"), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
COROUTINE = FORGETFUL.replace("def execute", "async def execute").replace(
    "while requests:", "await asyncio.sleep(0)\n        while requests:"
)


def _served(daemon: RunningDaemon, folder: Path, name: str, code: str, config: str) -> None:
    (make_model(folder / name, config=config) / "1" / "model.py").write_text(code)
    daemon.client.register_model(folder / name)


def _text(what: str) -> dict[str, np.ndarray]:
    return {"what": np.array([what.encode()], np.object_)}


@pytest.mark.parametrize("name", ["forgetful", "forgetful-coroutine"])
def test_the_stream_of_a_decoupled_model_ends_with_an_error(
    daemon: RunningDaemon, tmp_path: Path, name: str
) -> None:
    code = COROUTINE if name.endswith("coroutine") else FORGETFUL
    _served(daemon, tmp_path, name, code, DECOUPLED)
    for what, answers in (("here", 2), ("thread", 2), ("asks", 0), ("nothing", 0)):
        came: list[bytes] = []
        with (
            Streaming(daemon.grpc, name, _text(what)) as stream,
            pytest.raises(InferenceServerException, match="TRITONSERVER_RESPONSE_COMPLETE_FINAL"),
        ):
            came.extend(one["told"][0] for one in stream)  # keeps those before the error
        assert came == [b"one", b"two"][:answers], what
    with Streaming(daemon.grpc, name, _text("answers")) as stream:
        assert [one["told"][0] for one in stream] == [b"all"]
    daemon.client.unregister(name)  # nothing is under way any more, for which it would wait


def test_a_model_that_is_not_decoupled_answers_with_an_error(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    _served(daemon, tmp_path, "forgetful-once", FORGETFUL, CONFIG)
    with contextlib.closing(Inference("http", daemon.http)) as inference:
        with pytest.raises(InferenceServerException, match=r"response sender without a response\."):
            inference.infer("forgetful-once", _text("asks"))
        assert inference.infer("forgetful-once", _text("answers"))["told"][0] == b"all"
    daemon.client.unregister("forgetful-once")
