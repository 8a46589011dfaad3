"""Models of MLflow, TorchServe, LitServe and Hugging Face, made on the spot and registered by one line each.

The tools run in an interpreter of their own, as the registrant need not have them. For MLflow and LitServe, it is made with
pip, once. What needs torch has gigabytes: PYTRITON_TEST_TRANSFORMERS (torch, transformers, sentence-transformers) and
PYTRITON_TEST_TORCHSERVE (torch, torchserve) name an interpreter; without, the one that runs the tests is tried. Archives
with handlers of their own need no package.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.forks.prefork import command
from support.real_daemon import FRONT, RunningDaemon, eventually

from pytriton._protocol.exit_codes import ExitCode
from pytriton._register.environment import own_interpreter
from pytriton._register.environments import with_requirements
from pytriton.exceptions import (
    PyTritonBadParameterError,
    PyTritonValidationError,
    RegistrationError,
)

pytestmark = [
    pytest.mark.skipif(FRONT == "triton", reason="NVIDIA's frontend has no routes"),
    pytest.mark.timeout(300),
]


def interpreter(variable: str, *modules: str) -> str | None:
    """Return a Python that has a tool, None for the one that runs the tests; skip the test if there is none."""
    if os.environ.get(variable):
        return os.environ[variable]
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed, and ${variable} names no interpreter with it")
    return None


@pytest.fixture(scope="module")
def light() -> str:
    """Return a Python that has MLflow and LitServe."""
    try:
        return with_requirements(["litserve", "mlflow-skinny", "pandas"], own_interpreter())
    except PyTritonBadParameterError as error:  # no index can be reached
        pytest.skip(str(error))


def make(python: str | None, code: str, *arguments: Path) -> None:
    """Run the code that makes a model."""
    script = arguments[0].parent / "make.py"  # TorchScript reads the source
    script.write_text(code)
    run = [python or sys.executable, "-W", "ignore", str(script), *map(str, arguments)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def post(
    daemon: RunningDaemon, path: str, body: Any, content_type: str = "application/json"
) -> tuple[int, Any]:
    """Return the status of a response, and its body: JSON, else text."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://{daemon.http}{path}", data, {"Content-Type": content_type}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            status, text = response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            status, text = error.code, error.read().decode()
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text


def post_together(
    daemon: RunningDaemon, path: str, bodies: Sequence[Any], content_type: str = "application/json"
) -> list[tuple[int, Any]]:
    """Send requests at the same time; return the responses in their order."""
    with ThreadPoolExecutor(len(bodies)) as threads:
        return list(threads.map(lambda body: post(daemon, path, body, content_type), bodies))


def operation(daemon: RunningDaemon, path: str) -> tuple[Any, Any]:
    """Return an operation of the OpenAPI document, and the named schemas."""
    with urllib.request.urlopen(f"http://{daemon.http}/openapi.json", timeout=60) as response:
        document = json.load(response)
    return document["paths"][path]["post"], document["components"]["schemas"]


# ── MLflow ────────────────────────────────────────────────────────────────────────────────────────

MAKE_MLFLOW = """
import sys
import numpy as np
import pandas as pd
import mlflow.pyfunc
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema, TensorSpec

class Churn(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        assert str(model_input["age"].dtype) == "int32", model_input.dtypes
        risk = model_input["income"] / model_input["age"] * params["scale"]
        return pd.DataFrame({"risk": risk, "city": model_input["city"]})

columns = Schema([ColSpec("integer", "age"), ColSpec("double", "income"), ColSpec("string", "city", required=False)])
result = Schema([ColSpec("double", "risk"), ColSpec("string", "city", required=False)])
params = ParamSchema([ParamSpec("scale", "double", 1.0)])
mlflow.pyfunc.save_model(
    sys.argv[1], python_model=Churn(), signature=ModelSignature(columns, result, params), pip_requirements=[]
)

class Double(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        assert model_input.dtype == np.float32
        return model_input * 2

tensor = Schema([TensorSpec(np.dtype("float32"), (-1, 2))])
mlflow.pyfunc.save_model(sys.argv[2], python_model=Double(), signature=ModelSignature(tensor, tensor), pip_requirements=[])

class Bare(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        return [type(model_input).__name__]

mlflow.pyfunc.save_model(sys.argv[3], python_model=Bare(), pip_requirements=[])
"""


@pytest.fixture(scope="module")
def mlflow_models(
    daemon: RunningDaemon, light: str, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("mlflow")
    names = ("churn", "double", "bare")
    make(light, MAKE_MLFLOW, *(folder / name for name in names))
    for name in names:
        daemon.client.register_model(f"mlflow:{folder / name}", python=light)
    return folder


def test_an_mlflow_model_takes_the_bodies_of_mlflows_server(
    daemon: RunningDaemon, mlflow_models: Path
) -> None:
    rows = [{"age": 20, "income": 40, "city": "Rome"}, {"age": 10, "income": 5.5, "city": None}]
    split = {
        "columns": ["income", "age", "city"],
        "data": [[40, 20, "Rome"], [5.5, 10, None]],
    }
    columns = {"age": [20, 10], "income": [40, 5.5], "city": ["Rome", None]}
    wanted = [{"risk": 2.0, "city": "Rome"}, {"risk": 0.55, "city": None}]
    for body in (
        {"dataframe_records": rows},
        {"dataframe_split": split},
        {"instances": rows},
        {"inputs": columns},
        {"inputs": rows},
    ):
        assert post(daemon, "/churn", body) == (200, {"predictions": wanted}), body
    scaled = {"instances": rows[:1], "params": {"scale": 10}}
    assert post(daemon, "/churn", scaled) == (
        200,
        {"predictions": [{"risk": 20.0, "city": "Rome"}]},
    )
    body = {"inputs": [[1, 2], [3.5, 4]]}
    assert post(daemon, "/double", body) == (200, {"predictions": [[2, 4], [7, 8]]})
    assert post(daemon, "/bare", {"inputs": [1]}) == (200, {"predictions": ["ndarray"]})
    assert post(daemon, "/bare", {"dataframe_split": split}) == (
        200,
        {"predictions": ["DataFrame"]},
    )


def test_an_mlflow_signature_validates_and_describes(
    daemon: RunningDaemon, mlflow_models: Path
) -> None:
    for body, pointer in (
        ({"instances": [{"age": "old", "income": 1}]}, "#/instances/0/age"),
        ({"instances": [{"income": 1}]}, "#/instances/0"),
        ({"instances": [{"age": 2**31, "income": 1}]}, "#/instances/0/age"),
        ({"instances": [], "params": {"scale": "x"}}, "#/params/scale"),
        ({"input": []}, "#"),
    ):
        status, problem = post(daemon, "/churn", body)
        assert (status, problem["errors"][0]["pointer"]) == (422, pointer), problem
    status, problem = post(daemon, "/churn", {})
    assert (status, problem["detail"]) == (422, "Send the input as exactly one member, got 0")
    # MLflow itself finds the missing column.
    split = {"columns": ["age"], "data": [[1]]}
    status, problem = post(daemon, "/churn", {"dataframe_split": split})
    assert status == 422
    assert "income" in problem["detail"]
    assert post(daemon, "/double", {"inputs": [[1, 2, 3]]})[0] == 422
    described, schemas = operation(daemon, "/churn")
    members = described["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert "default" not in members["dataframe_records"]
    row = schemas[members["dataframe_records"]["items"]["$ref"].rpartition("/")[2]]
    assert row["properties"]["age"]["type"] == "integer"
    assert row["required"] == ["age", "income"]
    described, _ = operation(daemon, "/double")
    members = described["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert members["inputs"]["items"] == {
        "type": "array",
        "items": {"type": "number"},
        "minItems": 2,
        "maxItems": 2,
    }


def test_the_command_registers_and_the_error_says_what_is_missing(
    daemon: RunningDaemon, light: str, mlflow_models: Path
) -> None:
    env = {**os.environ, "PYTRITON_DAEMON_RUNTIME_DIR": daemon.config.runtime_dir}
    arguments = ["register", "mlflow:double", "--name", "twice", "--python", light]
    done = command(*arguments, cwd=mlflow_models, env=env)
    assert done.returncode == 0, done.stderr
    assert "twice is ready" in done.stdout
    assert post(daemon, "/twice", {"inputs": [[1, 2]]}) == (200, {"predictions": [[2, 4]]})
    done = command("register", "mlflow:nothing", cwd=mlflow_models, env=env)
    assert done.returncode == ExitCode.USAGE
    assert f"there is no {mlflow_models / 'nothing'}" in done.stderr
    with pytest.raises(PyTritonValidationError, match="has no file MLmodel"):
        daemon.client.register_model(f"mlflow:{mlflow_models}", python=light)
    if importlib.util.find_spec("mlflow") is None:
        with pytest.raises(PyTritonBadParameterError, match="MLflow models need mlflow, which"):
            daemon.client.register_model(f"mlflow:{mlflow_models / 'double'}")


# ── TorchServe ────────────────────────────────────────────────────────────────────────────────────

HANDLER = """
import json
import os

class PredictionException(Exception):
    def __init__(self, message, error_code=500):
        super().__init__(message)
        self.message, self.error_code = message, error_code

class Words:
    def initialize(self, context):
        self.context = context
        self.folder = context.system_properties["model_dir"]
        with open(os.path.join(self.folder, "words.json")) as file:
            self.words = json.load(file)
        assert context.manifest["model"]["modelVersion"] == "1.5"
        self.greeting = context.model_yaml_config.get("handler", {}).get("greeting", "hello")

    def preprocess(self, data):
        texts = []
        for index, one in enumerate(data):
            assert self.context.get_request_id(index)
            body = one.get("data") or one.get("body")
            if isinstance(body, dict):
                body = body["text"]
            texts.append(body.decode() if isinstance(body, bytes) else body)
        if "refuse" in texts:
            raise PredictionException("no such word", 404)
        return texts

    def inference(self, texts):
        return [(text, self.words.get(text), len(texts)) for text in texts]

    def postprocess(self, found):
        for index, (text, _, _) in enumerate(found):
            if text == "bad":
                self.context.set_response_status(code=400, phrase="a bad word", idx=index)
        return [
            self.greeting if text == "greet" else {"text": text, "number": number, "batch": size}
            for text, number, size in found
        ]

    def handle(self, data, context):
        context.metrics.add_counter("Calls", 1)
        return self.postprocess(self.inference(self.preprocess(data)))
"""
FUNCTION_HANDLER = """
ready = False

def entry(data, context):
    global ready
    if data is None:
        ready = True
        return None
    assert ready
    return [bytes(one["body"])[::-1] for one in data]
"""


def archive(path: Path, files: dict[str, str], **model: str) -> str:
    """Write a model archive, as torch-model-archiver does."""
    manifest = {
        "createdOn": "01/01/2026 00:00:00",
        "runtime": "python",
        "model": {"modelName": path.stem, "modelVersion": "1.5", **model},
        "archiverVersion": "0.12.0",
    }
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
        for name, text in files.items():
            packed.writestr(name, text)
    return f"torchserve:{path}"


def cache_in(folder: Path) -> dict[str, str | None]:
    """Return the variable that has archives unpacked in a folder."""
    return {"PYTRITON_DAEMON_CACHE_DIR": str(folder / "cache")}


def test_a_torchserve_archive_gets_requests_as_torchserve_passes_them(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    pytest.importorskip("yaml")
    files = {
        "handler.py": HANDLER,
        "words.json": '{"one": 1, "two": 2}',
        "model-config.yaml": "batchSize: 4\nmaxBatchDelay: 500\nhandler:\n  greeting: ciao\n",
    }
    target = archive(
        tmp_path / "words.mar", files, handler="handler.py", configFile="model-config.yaml"
    )
    daemon.client.register_model(target, env=cache_in(tmp_path))
    path = "/predictions/words"
    form = (
        b'--X\r\nContent-Disposition: form-data; name="data"; filename="w.txt"\r\n'
        b"Content-Type: text/plain\r\n\r\none\r\n--X--\r\n"
    )
    wanted = 200, {"text": "one", "number": 1, "batch": 1}
    assert post(daemon, path, {"text": "one"}) == wanted
    assert post(daemon, path, b"one", "application/octet-stream") == wanted
    assert post(daemon, path, b"one", "text/plain") == wanted
    with urllib.request.urlopen(
        urllib.request.Request(
            f"http://{daemon.http}{path}", b"one", {"Content-Type": ""}, method="PUT"
        ),
        timeout=60,
    ) as answer:
        assert json.load(answer) == wanted[1]
    assert post(daemon, path, b"data=one", "application/x-www-form-urlencoded") == wanted
    assert post(daemon, path, form, "multipart/form-data; boundary=X") == wanted
    assert post(daemon, path, b"greet", "text/plain") == (200, "ciao")
    assert post(daemon, path, b"{", "application/json")[0] == 400
    status, problem = post(daemon, path, b"refuse", "text/plain")
    assert (status, problem["detail"]) == (404, "no such word")
    status, problem = post(daemon, path, b"bad", "text/plain")
    assert (status, problem["detail"]) == (400, "a bad word")

    def share() -> bool:
        answers = post_together(daemon, path, [b"two"] * 4, "text/plain")
        assert {status for status, _ in answers} == {200}
        return any(body["batch"] > 1 for _, body in answers)

    eventually(share, "they arrive within the delay")


def test_a_torchserve_handler_may_be_a_function(daemon: RunningDaemon, tmp_path: Path) -> None:
    target = archive(tmp_path / "reverse.mar", {"h.py": FUNCTION_HANDLER}, handler="h.py:entry")
    model = daemon.client.register_model(target, env=cache_in(tmp_path))
    assert model.name == "reverse"
    path = "/predictions/reverse"
    assert post(daemon, path, b"abc", "application/octet-stream") == (200, "cba")
    described, _ = operation(daemon, path)
    assert set(described["requestBody"]["content"]) >= {"application/json", "multipart/form-data"}


def test_a_broken_torchserve_archive_is_refused(daemon: RunningDaemon, tmp_path: Path) -> None:
    path = tmp_path / "broken.mar"
    path.write_bytes(b"no archive")
    with pytest.raises(PyTritonBadParameterError, match="is not a model archive"):
        daemon.client.register_model(f"torchserve:{path}")
    target = archive(tmp_path / "missing.mar", {}, handler="image_classifier")
    with pytest.raises(RegistrationError, match="pip install torchserve"):
        daemon.client.register_model(target, env=cache_in(tmp_path))


MAKE_TORCH = """
import sys
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return x * 2

torch.jit.script(Net()).save(sys.argv[1])
"""
BASE_HANDLER = """
from ts.torch_handler.base_handler import BaseHandler

class Doubles(BaseHandler):
    def preprocess(self, data):
        import torch
        return torch.tensor([one["body"]["x"] for one in data])
"""


@pytest.mark.slow
def test_a_handler_may_derive_from_torchserves_own(daemon: RunningDaemon, tmp_path: Path) -> None:
    python = interpreter("PYTRITON_TEST_TORCHSERVE", "ts", "torch")
    make(python, MAKE_TORCH, tmp_path / "model.pt")
    path = tmp_path / "doubles.mar"
    target = archive(path, {"h.py": BASE_HANDLER}, handler="h.py", serializedFile="model.pt")
    with zipfile.ZipFile(path, "a") as packed:
        packed.write(tmp_path / "model.pt", "model.pt")
    daemon.client.register_model(target, python=python, env=cache_in(tmp_path))
    assert post(daemon, "/predictions/doubles", {"x": [1.5, 2]}) == (200, [3.0, 4.0])


# ── LitServe ──────────────────────────────────────────────────────────────────────────────────────

APP = """
from __future__ import annotations

import litserve as ls
from fastapi import HTTPException
from pydantic import BaseModel

class Square(ls.LitAPI):
    \"\"\"Square a number.\"\"\"

    def setup(self, device):
        self.device_seen = device

    def decode_request(self, request):
        if request["input"] < 0:
            raise HTTPException(status_code=418, detail="negative")
        return request["input"]

    def predict(self, x):
        return x ** 2

    def encode_response(self, output):
        return {"output": output, "device": self.device_seen}

class Upload(ls.LitAPI):
    def decode_request(self, request):
        return request["file"].filename, request["file"].file.read(), request["times"]

    def predict(self, x):
        name, data, times = x
        return {"name": name, "size": len(data) * int(times)}

class Typed(BaseModel):
    name: str
    count: int = 1

class Repeat(ls.LitAPI):
    def decode_request(self, request: Typed, context):
        context["count"] = request.count
        return request.name

    def predict(self, x, context):
        return x * context["count"]

class Words(ls.LitAPI):
    def predict(self, request):
        for word in request["text"].split():
            yield word

    def encode_response(self, output):
        for word in output:
            yield {"word": word}

class Batched(ls.LitAPI):
    def decode_request(self, request):
        if request["x"] is None:
            raise HTTPException(400, "nothing")
        return request["x"]

    def batch(self, inputs):
        return list(inputs)

    def predict(self, x):
        return [(one, len(x)) for one in x]

    def unbatch(self, output):
        return output

    def encode_response(self, output):
        return {"x": output[0], "batch": output[1]}

class Async(ls.LitAPI):
    async def decode_request(self, request):
        return request["x"]

    async def predict(self, x):
        return x + 1

    async def encode_response(self, output):
        return {"x": output}

streamed = Words(stream=True)
batched = Batched(max_batch_size=4, batch_timeout=0.5)
asynchronous = Async(enable_async=True)

if __name__ == "__main__":
    ls.LitServer(Square()).run()
"""


@pytest.fixture(scope="module")
def litserve_models(
    daemon: RunningDaemon, light: str, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("litserve") / "lit_app.py"
    path.write_text(APP)
    for name in ("Square", "Upload", "Repeat", "streamed", "batched", "asynchronous"):
        daemon.client.register_model(f"litserve:{path}:{name}", name.lower(), python=light)
    return path


def test_a_litserve_api_answers_as_under_litserve(
    daemon: RunningDaemon, litserve_models: Path
) -> None:
    status, body = post(daemon, "/square", {"input": 4})
    assert (status, body["output"]) == (200, 16)
    status, problem = post(daemon, "/square", {"input": -1})
    assert (status, problem["detail"]) == (418, "negative")
    assert post(daemon, "/square", b"{")[0] == 400
    assert operation(daemon, "/square")[0]["summary"] == "Square a number"
    form = (
        b'--X\r\nContent-Disposition: form-data; name="file"; filename="a.bin"\r\n'
        b"Content-Type: application/octet-stream\r\n\r\n12345\r\n"
        b'--X\r\nContent-Disposition: form-data; name="times"\r\n\r\n3\r\n--X--\r\n'
    )
    answer = post(daemon, "/upload", form, "multipart/form-data; boundary=X")
    assert answer == (200, {"name": "a.bin", "size": 15})
    assert post(daemon, "/asynchronous", {"x": 1}) == (200, {"x": 2})
    assert post(daemon, "/repeat", {"name": "ab", "count": 2}) == (200, "abab")
    status, problem = post(daemon, "/repeat", {"name": 1})
    assert (status, problem["errors"][0]["pointer"]) == (422, "#/name")
    status, events = post(daemon, "/streamed", {"text": "to be"})
    assert status == 200
    items = [line for line in events.splitlines() if line.startswith("data:")]
    assert [json.loads(one.partition(":")[2])["word"] for one in items[:2]] == ["to", "be"]


def test_a_litserve_api_gets_batches(daemon: RunningDaemon, litserve_models: Path) -> None:
    def share() -> bool:
        *good, wrong = post_together(daemon, "/batched", [{"x": x} for x in (1, 2, 3, None)])
        assert [(status, body["x"]) for status, body in good] == [(200, 1), (200, 2), (200, 3)]
        assert wrong[0] == 400
        return any(body["batch"] > 1 for _, body in good)

    eventually(share, "they arrive within the delay")


def test_serve_replaces_the_model_when_its_file_changes(
    daemon: RunningDaemon, light: str, tmp_path: Path
) -> None:
    app = tmp_path / "served_app.py"
    code = "import litserve as ls\nclass Plus(ls.LitAPI):\n    def predict(self, x):\n        return x['x'] + {}\n"
    app.write_text(code.format(1))
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pytriton._cli",
            "serve",
            "litserve:served_app.py:Plus",
            "--python",
            light,
            "--reload",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTRITON_DAEMON_RUNTIME_DIR": daemon.config.runtime_dir},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr is not None
    with process:
        try:
            said = process.stderr.readline()
            assert f"Plus is served at http://{daemon.http}/Plus" in said, (
                said + process.stderr.read()
            )
            assert post(daemon, "/Plus", {"x": 1}) == (200, 2)
            process.stderr.readline()
            process.stderr.readline()
            changed = app.with_suffix(".new")
            changed.write_text(code.format(10))
            changed.rename(app)
            eventually(lambda: post(daemon, "/Plus", {"x": 1}) == (200, 11), "the new code answers")
        finally:
            process.send_signal(signal.SIGINT)
            process.stderr.read()
    eventually(lambda: post(daemon, "/Plus", {"x": 1})[0] == 404, "the model is removed")


# ── Hugging Face ──────────────────────────────────────────────────────────────────────────────────

MAKE_TRANSFORMERS = """
import sys
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors
import torch
import transformers as t

torch.manual_seed(0)
vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "a", "the"]
plain = Tokenizer(models.WordLevel({word: index for index, word in enumerate(vocabulary)}, unk_token="[UNK]"))
plain.pre_tokenizer = pre_tokenizers.Whitespace()
plain.post_processor = processors.TemplateProcessing(
    single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
)
tokenizer = t.PreTrainedTokenizerFast(
    tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
    mask_token="[MASK]", model_max_length=32,
)
sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
bert = dict(vocab_size=len(vocabulary), max_position_embeddings=32, **sizes)
labels = dict(id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1})

def save(model, name, *more):
    for one in (model, *more):
        one.save_pretrained(f"{sys.argv[1]}/{name}")

save(t.BertForSequenceClassification(t.BertConfig(**bert, **labels)), "labels", tokenizer)
save(t.BertForTokenClassification(t.BertConfig(**bert, **labels)), "entities", tokenizer)
save(t.BertModel(t.BertConfig(**bert)), "encoder", tokenizer)
generator = t.GPT2Config(vocab_size=len(vocabulary), n_positions=32, n_embd=16, n_layer=1, n_head=2, bos_token_id=2, eos_token_id=3)
save(t.GPT2LMHeadModel(generator), "generator", tokenizer)
vision = t.ViTConfig(image_size=8, patch_size=4, **sizes, **labels)
save(t.ViTForImageClassification(vision), "images", t.ViTImageProcessor(size={"height": 8, "width": 8}))
Image.new("RGB", (8, 8), "red").save(f"{sys.argv[1]}/cat.png")
"""
MAKE_SENTENCES = """
import sys
from sentence_transformers import SentenceTransformer
try:
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
except ImportError:
    from sentence_transformers.models import Pooling, Transformer

encoder = Transformer(sys.argv[1])
SentenceTransformer(modules=[encoder, Pooling(16)], prompts={"query": "the"}, device="cpu").save(sys.argv[2])
"""


@pytest.fixture(scope="module")
def transformers_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    python = interpreter("PYTRITON_TEST_TRANSFORMERS", "transformers", "torch")
    folder = tmp_path_factory.mktemp("transformers")
    make(python, MAKE_TRANSFORMERS, folder)
    return folder


@pytest.mark.slow
def test_pipelines(daemon: RunningDaemon, transformers_models: Path) -> None:
    python = interpreter("PYTRITON_TEST_TRANSFORMERS", "transformers", "torch")
    for task, name in (
        ("text-classification", "labels"),
        ("ner", "entities"),
        ("text-generation", "generator"),
        ("image-classification", "images"),
    ):
        daemon.client.register_model(f"hf:{task}={transformers_models / name}", python=python)
    status, labels = post(daemon, "/labels", {"inputs": "a good film", "parameters": {"top_k": 2}})
    assert status == 200
    assert {one["label"] for one in labels} == {"yes", "no"}
    assert sum(one["score"] for one in labels) == pytest.approx(1, abs=1e-4)
    texts = [{"inputs": text} for text in ("good", "a good film", "the bad film")] * 3
    answers = post_together(daemon, "/labels", texts)
    assert [(status, len(found)) for status, found in answers] == [(200, 1)] * len(texts)
    status, entities = post(daemon, "/entities", {"inputs": "a good film"})
    assert (status, [one["word"] for one in entities]) == (200, ["a", "good", "film"])
    body = {"inputs": "the film", "parameters": {"max_new_tokens": 3, "do_sample": False}}
    status, generated = post(daemon, "/generator", body)
    assert status == 200
    assert generated[0]["generated_text"]
    picture = (transformers_models / "cat.png").read_bytes()
    encoded = base64.b64encode(picture).decode()
    status, found = post(daemon, "/images", {"inputs": encoded})
    assert (status, {one["label"] for one in found}) == (200, {"yes", "no"})
    form = (
        b'--X\r\nContent-Disposition: form-data; name="inputs"; filename="c.png"\r\n\r\n'
        + picture
        + b"\r\n--X--\r\n"
    )
    assert post(daemon, "/images", form, "multipart/form-data; boundary=X") == (200, found)
    assert post(daemon, "/images", {"inputs": "YQ=="})[0] == 422
    status, problem = post(daemon, "/labels", {"inputs": 5})
    assert (status, problem["errors"][0]["pointer"]) == (422, "#/inputs")
    described, _ = operation(daemon, "/labels")
    result = described["responses"]["200"]["content"]["application/json"]["schema"]
    assert result["type"] == "array"
    with pytest.raises(PyTritonValidationError, match="is not one of the tasks"):
        daemon.client.register_model(f"hf:cooking={transformers_models / 'labels'}", python=python)
    with pytest.raises(PyTritonBadParameterError, match="write hf:TASK=PATH"):
        daemon.client.register_model(f"hf:{transformers_models / 'labels'}", python=python)


@pytest.mark.slow
def test_sentence_transformers(daemon: RunningDaemon, transformers_models: Path) -> None:
    python = interpreter("PYTRITON_TEST_TRANSFORMERS", "sentence_transformers", "torch")
    folder = transformers_models / "sentences"
    make(python, MAKE_SENTENCES, transformers_models / "encoder", folder)
    daemon.client.register_model(f"sentence-transformers:{folder}", python=python)
    status, one = post(daemon, "/sentences", {"inputs": "a film"})
    assert (status, np.shape(one)) == (200, (1, 16))
    status, two = post(daemon, "/sentences", {"inputs": ["a film", "good"], "normalize": True})
    assert (status, np.shape(two)) == (200, (2, 16))
    assert np.linalg.norm(two, axis=1) == pytest.approx([1, 1])
    assert np.array(two[0]) * np.linalg.norm(one) == pytest.approx(np.array(one[0]), abs=1e-5)
    status, query = post(daemon, "/sentences", {"inputs": "a film", "prompt_name": "query"})
    assert status == 200
    assert query != one
    assert post(daemon, "/sentences", {"inputs": "a film", "prompt_name": "x"})[0] == 422
