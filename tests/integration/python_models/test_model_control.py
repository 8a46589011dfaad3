"""load_model, unload_model, is_model_ready in a model.py: as in Triton's backend, except for registered names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import tritonclient.grpc
from geventhttpclient.response import HTTPConnectionClosed
from support.models.inference import Inference
from support.models.model_folders import make_model
from support.plain_triton import plain_triton
from support.real_daemon import RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

#: Triton's own backend is restarted whenever it crashes.
pytestmark = pytest.mark.timeout(600)

Answer = TypeVar("Answer")

#: Evaluates what it is asked; what that raises is an answer, too.
ASKER = """
    def tell(self, what, request=None):
        try:
            return eval(what, {"pb_utils": pb_utils, "self": self, "np": np, "request": request})
        except Exception as error:
            return f"{type(error).__name__}: {error}"
"""
#: A configuration that goes with files.
OTHER = json.dumps(
    {
        "backend": "python",
        "input": [{"name": "what", "data_type": "TYPE_STRING", "dims": [1]}],
        "output": [{"name": "told", "data_type": "TYPE_STRING", "dims": [1]}],
        "parameters": {"size": {"string_value": "big"}},
    }
)


def ask(http: str, model: str, what: str) -> str:
    """Return, shortened, the response of a model of `make_model`."""
    inference = Inference("http", http)
    try:
        reported = inference.infer(model, {"what": np.array([what.encode()], np.object_)})["told"]
    finally:
        inference.close()
    return str(reported[0].decode())


def control(http: str, call: str) -> str:
    """Let the model `asker` call a function of pb_utils; return the result."""
    return ask(http, "asker", f"self.tell({'pb_utils.' + call!r})")


_MADE = "pb_utils.InferenceRequest(inputs=[], requested_output_names=['a'], model_name='m'{})"
_NO_METRIC = "pb_utils.MetricFamily('refused_{0}', 'x', pb_utils.MetricFamily.{0}).Metric({1})"
_METRIC = (
    "(lambda f: (lambda m: ({1}))(f.Metric({{'a': 'b'}})))"
    "(pb_utils.MetricFamily('asked_{0}', 'x', pb_utils.MetricFamily.{0}))"
)
#: What both answer the same, by subject.
EXPRESSIONS = {
    "arguments": [
        "sorted(self.args)",
        "[self.args[k] for k in ('model_name', 'model_version', 'model_instance_kind')]",
        "[self.args[k] for k in ('model_instance_name', 'model_instance_device_id')]",
        "self.args['model_config']",
        "pb_utils.get_model_dir().split('/')[-2:]",
    ],
    "tensors": [
        "pb_utils.Tensor('x', np.arange(6).reshape(2, 3).T).as_numpy().tolist()",
        "pb_utils.Tensor('x', np.zeros((0, 3), np.float32)).shape()",
        "pb_utils.Tensor('x', np.array([b'a', 'b'], object)).as_numpy().tolist()",
        "pb_utils.Tensor('x', np.array([True])).is_cpu()",
        "pb_utils.Tensor('x', np.arange(4)).__dlpack_device__()",
        "type(pb_utils.Tensor('x', np.arange(4)).to_dlpack()).__name__",
        "pb_utils.Tensor('', np.arange(3))",
        "pb_utils.Tensor('x', [1, 2])",
        "(lambda a: pb_utils.Tensor('x', a).as_numpy() is a)(np.arange(3))",
    ],
    "types": [
        "sorted(pb_utils.TRITON_STRING_TO_NUMPY)",
        "[np.dtype(pb_utils.triton_to_numpy_type(n)).name for n in range(1, 14)]",
        "[pb_utils.numpy_to_triton_type(d) for d in (np.bool_, np.int64, np.object_, np.bytes_)]",
        "pb_utils.triton_string_to_numpy('TYPE_BOOL'), pb_utils.triton_string_to_numpy('TYPE_FP16')",
        "pb_utils.triton_string_to_numpy('TYPE_BF16')",
        "pb_utils.serialize_byte_tensor(np.array([b'ab', 'c'], object))",
        "pb_utils.serialize_byte_tensor(np.array([], object)), pb_utils.serialize_byte_tensor(np.arange(2))",
        r"pb_utils.deserialize_bytes_tensor(b'\x02\x00\x00\x00ab').tolist()",
        "pb_utils.using_decoupled_model_transaction_policy({'model_transaction_policy': {'decoupled': True}})",
    ],
    "errors": [
        "pb_utils.TritonError('m').message(), int(pb_utils.TritonError('m').code())",
        "[int(getattr(pb_utils.TritonError, n)) for n in dir(pb_utils.TritonError) if n.isupper()]",
        "pb_utils.TritonError(), pb_utils.TritonError(3)",
        "pb_utils.InferenceResponse(error=pb_utils.TritonError('x')).has_error()",
        "pb_utils.InferenceResponse().has_error(), pb_utils.InferenceResponse().error()",
        "pb_utils.InferenceResponse([3])",
        "pb_utils.TritonModelException('x').args",
    ],
    "requests": [
        "request.parameters()",
        _MADE.format("") + ".parameters()",
        _MADE.format(", parameters={'a': 1, 'b': True, 'c': 'd'}") + ".parameters()",
        _MADE.format(", correlation_id='abc'") + ".correlation_id()",
        _MADE.format(", flags=3, timeout=7") + ".flags()",
        "pb_utils.InferenceRequest('id', 3, [], ['a'], 'm', 2, 1, 1000).timeout()",
        _MADE.format(", parameters={3: 1}"),
        _MADE.format(", timeout=-3"),
        _MADE.format(", flags='x'"),
        _MADE.format(", model_version='1'"),
        _MADE.format(", request_id=3"),
        _MADE.format("").replace("['a']", "[3]"),
        _MADE.format("").replace("[]", "[None]"),
        _MADE.format("").replace("[]", "None"),
        _MADE.format("").replace("inputs=[], ", ""),
        _MADE.format("").replace("requested_output_names=['a'], ", ""),
        "pb_utils.InferenceRequest()",
        "pb_utils.InferenceRequest(inputs=[], requested_output_names=[])",
        "pb_utils.InferenceResponse([None])",
        "pb_utils.InferenceResponse(None)",
        _MADE.format(", trace=3"),
        "pb_utils.PreferredMemory(3)",
    ],
    "metrics and logs": [
        _METRIC.format("COUNTER", "m.increment(2), m.value()"),
        _METRIC.format("GAUGE", "m.set(5), m.increment(-3), m.value()"),
        _NO_METRIC.format("HISTOGRAM", ""),
        _NO_METRIC.format("HISTOGRAM", "buckets=3"),
        _NO_METRIC.format("HISTOGRAM", "buckets=(1, 2)"),
        _NO_METRIC.format("COUNTER", "buckets=[]"),
        _NO_METRIC.format("COUNTER", "labels=[]"),
        _NO_METRIC.format("COUNTER", "{'a': 'b'}") + ".increment(1)",  # its family is gone
        _NO_METRIC.format("COUNTER", "{'a': 'b'}") + ".value()",
        _NO_METRIC.format("GAUGE", "{'a': 'b'}") + ".set(1)",
        _NO_METRIC.format("HISTOGRAM", "buckets=[1]") + ".observe(1)",
        "pb_utils.MetricFamily()",
        "pb_utils.MetricFamily('refused', 'x', 0)",
        "[int(getattr(pb_utils.Logger, n)) for n in ('INFO', 'WARNING', 'ERROR', 'VERBOSE')]",
        "pb_utils.Logger.log('x', 2)",
        "pb_utils.Logger.log(message='x', level=pb_utils.Logger.WARNING)",
    ],
    "flags": [
        f"int(pb_utils.TRITONSERVER_{name})"
        for name in (
            "RESPONSE_COMPLETE_FINAL", "REQUEST_FLAG_SEQUENCE_START", "REQUEST_FLAG_SEQUENCE_END",
            "REQUEST_RELEASE_ALL", "REQUEST_RELEASE_RESCHEDULE", "MEMORY_CPU", "MEMORY_GPU",
        )
    ],
}  # fmt: skip


def make_code(reported: str) -> bytes:
    """Return a model.py that always responds with the same text."""
    return f"""
import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        self.args = args
    def execute(self, requests, told={reported}):
        tensor = pb_utils.Tensor("told", np.array([str(told).encode()], np.object_))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
""".encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model repository, and the model that makes the calls."""
    folder = tmp_path_factory.mktemp("control")
    for name in ("one", "two"):
        make_model(folder / "repository" / name)
    make_model(folder / "asker", more=ASKER)
    return folder


@pytest.fixture(scope="module")
def daemon(folder: Path) -> Iterator[RunningDaemon]:
    """A daemon with that repository, which has loaded nothing of it, and the model that makes the calls."""
    repository = [str(folder / "repository")]
    with RunningDaemon.start(model_repository=repository, model_control_mode="explicit") as running:
        running.client.register_model(folder / "asker")
        yield running


#: Calls of functions of pb_utils, in order.
CALLS = [
    "is_model_ready('one')", "load_model('one')", "is_model_ready('one')",
    "is_model_ready('one', '1')", "is_model_ready('one', '7')", "is_model_ready('one', 'x')",
    "is_model_ready('nobody')", "is_model_ready(3)", "load_model('nobody')", "load_model(3)",
    "load_model('one', config='nonsense')", "load_model(model_name='one')",
    "load_model('')", "load_model('one', files={'file:1/model.py': 'no bytes'})",
    "load_model('three', files={'file:1/model.py': b'x'})",
    f"load_model('three', config={OTHER!r}, files={{'1/model.py': b'x'}})",
    f"load_model('three', config={OTHER!r}, files={{'file:1/model.py': b'not Python'}})",
    "is_model_ready('three')", "unload_model('nobody')", "unload_model('one')",
    "is_model_ready('one')", "unload_model('one')", "unload_model('one', True)",
    "unload_model('one', unload_dependents=1)", "load_model('asker')",
]  # fmt: skip
#: About every second round of these calls crashes it; more of them where cores are busy.
_STOCK_ATTEMPTS = 30


class Stock:
    """Triton's own python backend with the same models; restarted when it crashes in load_model (seen in 2.51)."""

    def __init__(self, folder: Path, own: Path) -> None:
        self._folder, self._own = folder, own
        self._starts = 0
        self._running = ExitStack()
        self.http = ""

    def start(self) -> None:
        self._running.close()
        self._starts += 1
        own = self._own / str(self._starts)
        shutil.copytree(self._folder / "repository", own / "models")
        shutil.copytree(self._folder / "asker", own / "models" / "asker")
        options = ["--model-control-mode=explicit", "--load-model=asker"]
        triton = self._running.enter_context(plain_triton(own, {}, options))
        self.http = triton.http.partition("//")[2]

    def run(self, asking: Callable[[], Answer]) -> Answer:
        """Return the result of `asking`; start it again, with a new server, whenever the server crashes."""
        for _ in range(_STOCK_ATTEMPTS):
            try:
                return asking()
            except (OSError, HTTPConnectionClosed, InferenceServerException) as error:  # noqa: PERF203
                crash = error
                self.start()
        raise crash

    def close(self) -> None:
        self._running.close()


@pytest.fixture(scope="module")
def stock(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stock]:
    """Triton's own python backend with the same models."""
    with closing(Stock(folder, tmp_path_factory.mktemp("stock"))) as stock:
        stock.start()
        yield stock


def test_both_backends_agree_on_model_control_calls(daemon: RunningDaemon, stock: Stock) -> None:
    outcomes = stock.run(lambda: [control(stock.http, call) for call in CALLS])
    for call, wanted in zip(CALLS, outcomes):
        got = control(daemon.http, call)
        # The reasons are ours; the exception, and what could not be done, are theirs.
        assert got.partition(":")[0] == wanted.partition(":")[0], (call, wanted, got)
        if wanted.startswith("TritonModelException"):
            assert got.split(":")[1] == wanted.split(":")[1], (call, wanted, got)


@pytest.mark.parametrize("subject", EXPRESSIONS)
def test_both_backends_agree_on_the_rest_of_pb_utils(
    daemon: RunningDaemon, stock: Stock, subject: str
) -> None:
    for expression in EXPRESSIONS[subject]:
        what = f"self.tell({expression!r}, request)"
        wanted = stock.run(lambda what=what: ask(stock.http, "asker", what))  # type: ignore[misc]
        got = ask(daemon.http, "asker", what)
        if "TypeError" in wanted:  # the words of pybind11
            wanted, got = wanted.partition(":")[0], got.partition(":")[0]
        assert got == wanted, expression


def test_files_make_a_model_until_it_is_unloaded(daemon: RunningDaemon) -> None:
    for reported in ("first", "second"):
        code = make_code(repr(reported))
        call = f"load_model('brought', {OTHER!r}, {{'file:1/model.py': {code!r}}})"
        assert control(daemon.http, call) == "None"
        assert ask(daemon.http, "brought", "") == reported
    broken = f"load_model('brought', {OTHER!r}, {{'file:1/model.py': b'not Python'}})"
    assert "Failed to load model" in control(daemon.http, broken)
    assert ask(daemon.http, "brought", "") == "second"  # what was there serves on
    outside = f"load_model('brought', {OTHER!r}, {{'file:../../model.py': b''}})"
    assert "points outside the model's folder" in control(daemon.http, outside)
    given = Path(daemon.config.runtime_dir) / "given"
    assert len(list(given.glob("*/brought/1/model.py"))) == 1
    assert control(daemon.http, "unload_model('brought')") == "None"
    assert control(daemon.http, "is_model_ready('brought')") == "False"
    eventually(lambda: not list(given.iterdir()), "its files are gone")
    assert "no model repository has a model 'brought'" in control(
        daemon.http, "load_model('brought')"
    )


def test_files_and_a_configuration_override_the_repository(
    daemon: RunningDaemon,
) -> None:
    call = f"load_model('two', {OTHER!r}, {{'file:1/model.py': {make_code('99')!r}}})"
    assert control(daemon.http, call) == "None"
    assert ask(daemon.http, "two", "1 + 1") == "99"
    assert control(daemon.http, f"load_model('two', config={OTHER!r})") == "None"
    assert ask(daemon.http, "two", "1 + 1") == "2"
    assert (
        ask(daemon.http, "two", "'\"string_value\":\"big\"' in self.args['model_config']") == "True"
    )
    (model,) = [one for one in daemon.client.repository() if one.name == "two"]
    assert model.state == "ready"


def test_registered_names_belong_to_their_registrant(daemon: RunningDaemon, tmp_path: Path) -> None:
    daemon.client.register_model(make_model(tmp_path / "mine"))
    assert control(daemon.http, "is_model_ready('mine')") == "True"
    assert control(daemon.http, "load_model('mine')") == "None"  # it is served already
    assert "is registered" in control(daemon.http, f"load_model('mine', {OTHER!r})")
    refused = control(daemon.http, "unload_model('mine')")
    assert refused.startswith("TritonModelException: Failed to unload model: ")
    assert "unregister mine" in refused
    assert ask(daemon.http, "mine", "6 * 7") == "42"


def test_a_model_loads_others_at_its_start_and_unloads_them_at_its_end(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    folder = make_model(
        tmp_path / "pipeline",
        initialize="pb_utils.load_model('one')",
        more="    def finalize(self):\n        pb_utils.unload_model('one')\n",
    )
    model = daemon.client.register_model(folder)
    assert ask(daemon.http, "pipeline", "pb_utils.is_model_ready('one')") == "True"
    assert ask(daemon.http, "one", "2 + 3") == "5"
    model.unregister()
    assert control(daemon.http, "is_model_ready('one')") == "False"


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: the Python proxy cannot")
def test_parameters_of_a_response_reach_the_client(daemon: RunningDaemon, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "with-parameters")
    code = (folder / "1" / "model.py").read_text()
    given = {"number": 7, "sure": True, "text": "ja"}
    code = code.replace("Response([told])", f"Response([told], parameters={given!r})")
    (folder / "1" / "model.py").write_text(code)
    daemon.client.register_model(folder)
    with tritonclient.grpc.InferenceServerClient(daemon.grpc) as client:
        tensor = tritonclient.grpc.InferInput("what", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([b"1"], np.object_))
        answer = client.infer("with-parameters", [tensor]).get_response()
    said = {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in answer.parameters.items()
    }
    assert {name: said.get(name) for name in given} == given
    call = (
        "pb_utils.InferenceRequest(inputs=[pb_utils.Tensor('what', np.array([b'1'], np.object_))],"
    )
    call += " requested_output_names=['told'], model_name='with-parameters').exec().parameters()"
    assert json.loads(ask(daemon.http, "asker", call)) == given  # and a model that calls it
