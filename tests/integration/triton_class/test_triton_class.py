"""`Triton` with a real server: bind, infer, tokens, options; one server for the whole module."""

from __future__ import annotations

import inspect
import json
import os
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fakes.short_waits import wait_for_one_answer
from support.models.inference import Array
from support.real_daemon import FRONT, eventually
from support.scripts import local_config

from pytriton.client import ModelClient
from pytriton.client.exceptions import PyTritonClientModelUnavailableError
from pytriton.daemon import DaemonClient
from pytriton.decorators import batch
from pytriton.exceptions import PyTritonInvalidOperationError, RegistrationError
from pytriton.limits import Limits
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import TRITON_ACCESS_HEADER, RemoteTriton, Triton, TritonSecurityConfig

X = [Tensor(dtype=np.float32, shape=(-1,))]
BATCHING = ModelConfig(max_batch_size=8)
ONES = np.ones(3, np.float32)
TOKEN = "short+/="  # shorter than a daemon's settings allow, and with all that a header can carry


@batch
def double(**inputs: Array) -> list[Array]:
    (x,) = inputs.values()
    return [x * 2]


class Device:
    """One instance for each device, as in PyTriton's documents."""

    def __init__(self, number: int) -> None:
        self.number = number

    @batch
    def __call__(self, **inputs: Array) -> list[Array]:
        (x,) = inputs.values()
        return [np.full_like(x, self.number)]


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    """A server in a `with` block; `double` was bound before it was started."""
    config = local_config(response_cache_byte_size=1 << 20, id="a name with blanks")
    security = TritonSecurityConfig(access_token=TOKEN)
    workspace = tmp_path_factory.mktemp("t") / "workspace"
    with Triton(config=config, security_config=security, workspace=workspace) as triton:
        triton.bind("double", double, X, X, config=BATCHING)
        yield triton
    assert not triton.is_alive()


def ask(url: str, model: str, value: Array = ONES, patience_s: float | None = None) -> Array:
    with ModelClient(url, model, inference_timeout_s=60, init_timeout_s=patience_s) as client:
        result: Array = client.infer_sample(value)["OUTPUT_1"]
        return result


def get(url: str, **headers: str) -> Any:
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read() or b"null")


def test_bound_models_are_served(triton: Triton) -> None:
    assert triton.is_alive()
    assert triton.is_connected()
    assert ask(triton.http_url, "double").tolist() == [2, 2, 2]
    assert ask(triton.grpc_url, "double").tolist() == [2, 2, 2]


def test_a_second_run_changes_nothing(triton: Triton) -> None:
    triton.run()
    triton.connect()
    assert ask(triton.http_url, "double").tolist() == [2, 2, 2]


def test_options_with_spaces_reach_the_server(triton: Triton) -> None:
    assert get(f"{triton.http_url}/v2")["name"] == "a name with blanks"


def test_restricted_endpoints_require_the_token(triton: Triton) -> None:
    token = triton.get_access_token()
    assert token == TOKEN
    url = f"{triton.http_url}/v2/models/double/stats"
    with pytest.raises(urllib.error.HTTPError, match="403") as refused:
        get(url)
    refused.value.close()
    assert get(url, **{TRITON_ACCESS_HEADER: token})["model_stats"][0]["name"] == "double"


def test_a_callable_for_each_instance(triton: Triton) -> None:
    triton.bind("devices", [Device(3), Device(4)], X, X, config=ModelConfig(batching=False))
    answers: set[float] = set()

    def both() -> bool:
        answers.add(float(ask(triton.http_url, "devices")[0]))
        return len(answers) > 1

    eventually(both, "each instance has answered")  # which one does, tritonserver decides
    assert answers == {3.0, 4.0}


def test_workers_get_the_scripts_environment_and_folder(triton: Triton) -> None:
    os.environ["OF_THE_SCRIPT_API_KEY"] = "12"  # forwarded although it looks like a secret

    @batch
    def where(**inputs: Array) -> list[Array]:
        (x,) = inputs.values()
        return [x * int(os.environ["OF_THE_SCRIPT_API_KEY"])]

    try:
        triton.bind("where", where, X, X, config=BATCHING)
    finally:
        del os.environ["OF_THE_SCRIPT_API_KEY"]
    assert ask(triton.http_url, "where").tolist() == [12, 12, 12]


def test_a_model_that_fails_to_load_leaves_the_name_free(triton: Triton) -> None:
    def broken() -> Any:
        raise ValueError("no weights")

    with pytest.raises(RegistrationError, match="no weights"):
        triton.bind("late", broken, X, X, factory=True)
    with pytest.raises(PyTritonInvalidOperationError, match="the same name twice"):
        triton.bind("DOUBLE", double, X, X)
    triton.bind("late", double, X, X, config=BATCHING)
    assert ask(triton.http_url, "late").tolist() == [2, 2, 2]


def test_the_response_cache_answers(triton: Triton) -> None:
    @batch
    def count(**inputs: Array) -> list[Array]:
        (x,) = inputs.values()
        count.calls = getattr(count, "calls", 0) + 1  # type: ignore[attr-defined]
        return [x + count.calls]  # type: ignore[attr-defined]

    config = ModelConfig(batching=False, response_cache=True)
    triton.bind("count", count, X, X, config=config)
    first = ask(triton.http_url, "count").tolist()
    if FRONT == "triton":  # the key of Triton's cache is too short, so nothing is cached
        assert ask(triton.http_url, "count").tolist() == [x + 1 for x in first]
        return
    assert ask(triton.http_url, "count").tolist() == first
    assert ask(triton.http_url, "count", ONES * 5).tolist() == [7, 7, 7]  # the second call


def test_a_model_can_be_rebound_and_unbound(
    triton: Triton, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook, where the cell that binds runs again: unchanged, after a change, and after a mistake in it."""

    @batch
    def triple(**inputs: Array) -> list[Array]:
        (x,) = inputs.values()
        return [x * 3]

    def broken() -> Any:
        raise RuntimeError("a mistake in the cell")

    for isolation in ("process", "thread", "process"):
        for infer, factor in ((double, 2), (triple, 3)):
            triton.bind("cell", infer, X, X, config=BATCHING, isolation=isolation, replace=True)
            assert ask(triton.http_url, "cell").tolist() == [factor] * 3
    with pytest.raises(RegistrationError, match="a mistake in the cell"):
        triton.bind("cell", broken, X, X, config=BATCHING, factory=True, replace=True)
    with pytest.raises(PyTritonInvalidOperationError, match="Cannot add model with the same name"):
        triton.bind("cell", double, X, X, config=BATCHING)
    assert ask(triton.http_url, "cell").tolist() == [3, 3, 3]
    assert triton.is_alive()
    triton.unbind("cell")
    with monkeypatch.context() as patch:
        wait_for_one_answer(patch)
        with pytest.raises(PyTritonClientModelUnavailableError):
            ask(triton.http_url, "cell", patience_s=60)
    assert triton.is_alive()
    triton.bind("cell", double, X, X, config=BATCHING, isolation="thread")
    triton.unbind("cell")


def test_every_argument_of_register_works(triton: Triton) -> None:
    """Except `ephemeral` (docs/how-to/pytriton.md). `openai` and `route` decide the tensors; other tests cover them."""
    seen: list[Any] = []
    given: dict[str, Any] = {
        "instances": 2, "devices": ["cpu", "cpu"], "factory": True, "python": sys.executable, "cwd": "/",
        "env": {"OF_THE_MODEL": "5"}, "sys_path": ["/nowhere"], "load_timeout_s": 60, "on_crash": "fail", "on_error": "fail", "max_concurrency": 1, "standby_workers": 1,
        "execution_timeout_s": 60, "max_batches": 1000, "limits": Limits(open_files=1000), "max_inflight_batches": 1,
        "zero_copy_inputs": True, "requirements": None, "trace_config": [], "check": lambda infer: infer([]),
        "isolation": "process", "replace": True, "progress": seen.append, "access_log": True,
        "lazy": True, "memory_request": "64MiB", "gpu_memory_request": "1GiB",
    }  # fmt: skip
    parameters = inspect.signature(DaemonClient.register).parameters.values()
    known = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
    assert known - {"strict", "model_version", "ephemeral", "openai", "route"} == set(given)

    def make() -> Any:
        import os
        import sys

        facts = (os.getcwd(), os.environ["OF_THE_MODEL"], "/nowhere" in sys.path)
        assert facts == ("/", "5", True)
        return lambda requests: [{"OUTPUT_1": one["INPUT_1"] * 1} for one in requests]

    triton.bind("all", make, X, X, config=BATCHING, **given)
    assert ask(triton.http_url, "all").tolist() == [1, 1, 1]
    assert seen
    triton.unbind("all")


def test_a_remote_object_binds_models(triton: Triton) -> None:
    """Its models end when it is closed, the server and the others stay; it found the token by itself."""
    remote = RemoteTriton(triton.http_url)
    assert (remote.is_alive(), remote.is_connected()) == (True, False)
    with remote:
        remote.bind("guest", double, X, X, config=BATCHING)
        assert remote.is_alive()
        assert remote.get_access_token() == triton.get_access_token()
        assert ask(triton.grpc_url, "guest").tolist() == [2, 2, 2]
    assert not remote.is_connected()
    with pytest.raises(urllib.error.HTTPError) as gone:
        get(f"{triton.http_url}/v2/models/guest/ready")
    gone.value.close()
    assert ask(triton.http_url, "double").tolist() == [2, 2, 2]


def test_a_remote_object_can_replace_a_model(triton: Triton) -> None:
    @batch
    def triple(**inputs: Array) -> list[Array]:
        (x,) = inputs.values()
        return [x * 3]

    with RemoteTriton(triton.http_url) as first, RemoteTriton(triton.http_url) as second:
        first.bind("taken", double, X, X, config=BATCHING)
        second.bind("taken", triple, X, X, config=BATCHING)
        assert ask(triton.http_url, "taken").tolist() == [3, 3, 3]
        assert first.stop() is True  # what has its name is not its own any more
        assert ask(triton.http_url, "taken").tolist() == [3, 3, 3]


def test_a_remote_object_serves_until_it_is_closed(triton: Triton) -> None:
    remote = RemoteTriton(triton.grpc_url, access_token=triton.get_access_token())
    assert remote.is_alive()
    remote.bind("served", double, X, X, config=BATCHING)
    serving = threading.Thread(target=remote.serve)
    serving.start()
    eventually(remote.is_connected, "it serves")
    assert ask(triton.http_url, "served").tolist() == [2, 2, 2]
    remote.close()
    serving.join(60)
    assert not serving.is_alive()
