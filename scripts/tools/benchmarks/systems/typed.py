"""The systems that serve a typed function as a web API, each set up as its documentation shows it.

All get the same text in JSON, and the same image in a form. LitServe and mosec cannot receive a file in a form:
LitServe gets the image in base64, and mosec in base64 or msgpack.
"""

from __future__ import annotations

import base64
import json
import os
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import environments
from benchmarks.load.wire import Check, Request, WrongAnswer
from benchmarks.systems.base import Ports, System
from benchmarks.systems.peers import BentoML, LitServe
from benchmarks.systems.triton import Ours
from benchmarks.workloads import Payload, Workload

_JSON = "application/json"
_BOUNDARY = "7b3c1d5e9f"
_FORM = f"multipart/form-data; boundary={_BOUNDARY}"
_TOP_K = 2


def image(payload: Payload) -> bytes:
    """Return the bytes of the uploaded image; no system looks inside."""
    return (bytes(range(256)) * (payload.image_bytes // 256 + 1))[: payload.image_bytes]


def arguments(payload: Payload) -> dict[str, Any]:
    """Return the arguments of the function."""
    if payload.image_bytes:
        return {"image": image(payload)}
    if payload.answer is not None:
        return {"text": payload.text}
    return {"text": payload.text, "top_k": _TOP_K}


def result(payload: Payload) -> Any:
    """Return the right result of the function."""
    if payload.image_bytes:
        return {"size": payload.image_bytes}
    if payload.answer is not None:
        return {"size": payload.answer}
    words = payload.text.split()[:_TOP_K]
    return [{"label": word, "score": 1 / (place + 1)} for place, word in enumerate(words)]


def body(payload: Payload) -> tuple[bytes, str]:
    """Return a body with the arguments, JSON or a form, and its Content-Type."""
    if not payload.image_bytes:
        return json.dumps(arguments(payload)).encode(), _JSON
    head = 'Content-Disposition: form-data; name="image"; filename="cat.jpg"\r\nContent-Type: image/jpeg'
    start = f"--{_BOUNDARY}\r\n{head}\r\n\r\n".encode()
    return start + image(payload) + f"\r\n--{_BOUNDARY}--\r\n".encode(), _FORM


def base64_json(payload: Payload) -> bytes:
    """Return the arguments as JSON, an image in base64."""
    given = arguments(payload)
    if "image" in given:
        given["image"] = base64.b64encode(given["image"]).decode()
    return json.dumps(given).encode()


def check(wanted: Any, decode: Callable[[bytes], Any]) -> Check:
    """Return a function that raises WrongAnswer unless a response's body contains this result."""
    return partial(_check, wanted, decode)


def _check(wanted: Any, decode: Callable[[bytes], Any], found: bytes, _: Any) -> None:
    try:
        decoded = decode(found)
    except (ValueError, LookupError, msgspec.DecodeError) as error:
        raise WrongAnswer(f"{found[:300]!r} cannot be decoded: {error}") from error
    if decoded != wanted:
        raise WrongAnswer(f"{decoded!r:.300}, expected {wanted!r:.300}")


class _Typed(System):
    only = "typed"

    def request(self, workload: Workload, protocol: str, ports: Ports) -> Request:
        content, kind = body(workload.payload)
        url = f"{ports.http_base}/{workload.model.name}"
        right = check(result(workload.payload), json.loads)
        return Request(url, content, right, {"content-type": kind})

    @staticmethod
    def json_request(workload: Workload, url: str) -> Request:
        """Return the request of systems that accept only JSON."""
        right = check(result(workload.payload), json.loads)
        return Request(url, base64_json(workload.payload), right, {"content-type": _JSON})


class OursRoute(_Typed, Ours):
    """The function's own route."""

    name = "ours-route"
    title = "pytriton-daemon, typed route"
    script = "typed_ours.py"
    protocols: tuple[str, ...] = ("http",)
    note = "a function with type hints, validated by msgspec"


class OursKServe(OursRoute):
    """The same server, with the same body as a tensor of the KServe protocol."""

    name = "ours-kserve"
    title = "pytriton-daemon, KServe route"
    shares = OursRoute.name
    note = "the same function; its body is a BYTES tensor, in JSON, or binary for the upload"

    def request(self, workload: Workload, protocol: str, ports: Ports) -> Request:
        content, kind = body(workload.payload)
        url = f"{ports.http_base}/v2/models/{workload.model.name}/infer"
        tensor: dict[str, Any] = {"name": "body", "shape": [1, 1], "datatype": "BYTES"}
        right = check(result(workload.payload), _from_kserve)
        if kind == _JSON:
            whole = json.dumps({"inputs": [{**tensor, "data": [content.decode()]}]})
            return Request(url, whole.encode(), right, {"content-type": _JSON})
        data = struct.pack("<I", len(content)) + content
        tensor["parameters"] = {"binary_data_size": len(data)}
        parameters = {"content_type": kind}
        head = json.dumps({"parameters": parameters, "inputs": [tensor]}).encode()
        headers = {
            "content-type": "application/octet-stream",
            "inference-header-content-length": str(len(head)),
        }
        return Request(url, head + data, right, headers)


def _from_kserve(found: bytes) -> Any:
    return json.loads(json.loads(found)["outputs"][0]["data"][0])


class FastAPI(_Typed):
    """FastAPI on uvicorn with one worker."""

    name = "fastapi"
    title = "FastAPI"
    script = "typed_fastapi.py"
    requirements = ("fastapi", "uvicorn[standard]", "python-multipart", "numpy")
    distributions = ("fastapi", "uvicorn", "uvloop", "httptools", "pydantic")
    note = "uvicorn, 1 worker; `def`, validated by pydantic"
    asynchronous = False
    workers = 1

    def environment(self) -> dict[str, str]:
        return {
            "BENCH_ASYNC": "1" if self.asynchronous else "",
            "BENCH_WORKERS": str(self.workers),
        }


class FastAPITwo(FastAPI):
    """FastAPI on uvicorn with two workers."""

    name = "fastapi-2"
    title = "FastAPI, 2 workers"
    note = "uvicorn, 2 workers; `def`, validated by pydantic"
    workers = 2


class FastAPIAsync(FastAPI):
    """FastAPI without its threads, for functions that never block."""

    name = "fastapi-async"
    title = "FastAPI, async def"
    note = "uvicorn, 1 worker; `async def`, validated by pydantic"
    asynchronous = True


class TypedLitServe(_Typed, LitServe):
    """LitServe with its own decoding of JSON and forms."""

    name = "litserve-typed"
    title = "LitServe"
    script = "typed_litserve.py"
    distributions = ("litserve", "fastapi", "pydantic")
    note = "1 worker, fast queue; JSON validated by pydantic, the upload in base64"

    def request(self, workload: Workload, protocol: str, ports: Ports) -> Request:
        return self.json_request(workload, f"{ports.http_base}/{workload.model.name}")


class TypedBentoML(_Typed, BentoML):
    """BentoML with typed methods."""

    name = "bentoml-typed"
    title = "BentoML"
    distributions = ("bentoml", "pydantic")
    note = "1 worker; JSON validated by pydantic, the upload as a `Path`"


class MosecJson(_Typed):
    """mosec with its default format."""

    name = "mosec-json"
    title = "mosec, JSON"
    script = "typed_mosec.py"
    requirements = ("mosec", "numpy", "msgspec")
    distributions = ("mosec", "msgspec")
    note = "1 worker; JSON without validation, the upload in base64"
    format = "json"

    def environment(self) -> dict[str, str]:
        return {"BENCH_FORMAT": self.format}

    def request(self, workload: Workload, protocol: str, ports: Ports) -> Request:
        return self.json_request(workload, f"{ports.http_base}/inference")


class MosecMsgpack(MosecJson):
    """mosec with msgpack."""

    name = "mosec-msgpack"
    title = "mosec, msgpack"
    note = "1 worker; msgpack validated by msgspec (`TypedMsgPackMixin`)"
    format = "msgpack"

    def request(self, workload: Workload, protocol: str, ports: Ports) -> Request:
        content = msgspec.msgpack.encode(arguments(workload.payload))
        right = check(result(workload.payload), msgspec.msgpack.decode)
        headers = {"content-type": "application/msgpack"}
        return Request(f"{ports.http_base}/inference", content, right, headers)


#: One environment for all systems that serve real models, as most of it is torch.
_MODELS = (
    "fastapi",
    "uvicorn[standard]",
    "python-multipart",
    "litserve",
    "bentoml",
    "numpy",
    "torch",
    "transformers",
    "lightgbm",
    "scikit-learn",
)


def _models_python(variable: str = "MODELS_PYTHON") -> Path:
    """Return the interpreter that an environment variable names, or else that of an environment for all models."""
    explicit = os.environ.get(variable) or os.environ.get("MODELS_PYTHON")
    return Path(explicit) if explicit else environments.ensure("models", _MODELS)


class OursModels(OursRoute):
    """Models with the defaults of this checkout."""

    name = "ours-models"
    title = "pytriton-daemon, defaults"
    note = "a class with type hints; instances, threads and batch size as `register` chooses them"
    only = "models"

    def environment(self) -> dict[str, str]:
        return {"BENCH_PYTHON": str(_models_python())}


class FastAPIModels(FastAPI):
    """Models with the defaults of FastAPI."""

    name = "fastapi-models"
    title = "FastAPI, defaults"
    note = "uvicorn, 1 worker; `def`, validated by pydantic"
    only = "models"

    def python(self) -> Path:
        return _models_python()


class LitServeModels(TypedLitServe):
    """Models with the defaults of LitServe."""

    name = "litserve-models"
    title = "LitServe, defaults"
    note = "1 worker, fast queue; JSON validated by pydantic"
    only = "models"

    def python(self) -> Path:
        return _models_python("LITSERVE_PYTHON")


class BentoMLModels(TypedBentoML):
    """Models with the defaults of BentoML."""

    name = "bentoml-models"
    title = "BentoML, defaults"
    note = "a service without options"
    only = "models"

    def python(self) -> Path:
        return _models_python("BENTOML_PYTHON")

    def request(self, workload: Workload, protocol: str, ports: Ports) -> Request:
        return self.json_request(workload, f"{ports.http_base}/predict")


SYSTEMS: tuple[System, ...] = (
    OursRoute(),
    OursKServe(),
    FastAPI(),
    FastAPITwo(),
    FastAPIAsync(),
    TypedLitServe(),
    TypedBentoML(),
    MosecJson(),
    MosecMsgpack(),
    OursModels(),
    FastAPIModels(),
    LitServeModels(),
    BentoMLModels(),
)
