"""TorchServe's model archives: a handler gets the requests and the context that TorchServe would pass.

The handler's own imports decide what the environment must have; handlers derived from those of TorchServe need the
package torchserve. Metrics of the context are ignored, and headers of requests are not available.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import inspect
import json
import mmap
import os
import shutil
import sys
import uuid
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from pytriton.decorators.wrapping import Kind
from pytriton.exceptions import HTTPError
from pytriton.formats.loaded import FormatError
from pytriton.formats.tools import ToolModel, file_at, has_gpu
from pytriton.typed.bodies import Arguments
from pytriton.typed.markers import Batching
from pytriton.typed.multipart import parse_form, parse_multipart
from pytriton.typed.problems import Problem
from pytriton.typed.signature import Parameter, Signature

_MANIFEST = "MAR-INF/MANIFEST.json"
_JSON = "application/json"
#: TorchServe's defaults (docs/batch_inference_with_ts.md).
_BATCH_SIZE, _MAX_DELAY_MS = 1, 100
_CONTENT: dict[str, Any] = {
    _JSON: {"schema": {}},
    "application/octet-stream": {"schema": {}},
    "multipart/form-data": {"schema": {"type": "object"}},
    "text/plain": {"schema": {}},
}


def open_model(location: str) -> ToolModel:
    """Read a .mar file, or the folder from which one is made.

    Raises:
        FormatError: it is not a model archive.
    """
    path = file_at(location, "TorchServe")
    try:
        manifest = json.loads(_member(path, _MANIFEST))
        model = manifest["model"]
        name, handler = str(model["modelName"]), str(model["handler"])
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise FormatError(f"{path} is not a TorchServe model archive: {error}") from error
    config = _config(path, str(model.get("configFile") or ""))
    batch_size = int(config.get("batchSize", _BATCH_SIZE))
    delay_s = int(config.get("maxBatchDelay", _MAX_DELAY_MS)) / 1000
    signature = Signature(
        name=name,
        parameters=(Parameter("data", Any, required=True),),
        result=Any,
        kind=Kind.FUNCTION,
        batching=Batching(batch_size, delay_s if batch_size > 1 else 0.0),
        doc=f"Call the handler {handler} of a TorchServe model.",
    )

    def load() -> Callable[..., Any]:
        folder = _unpacked(path)
        return Service(handler, Context(manifest, str(folder), batch_size, config), _held(folder))

    # TorchServe's path and methods
    return ToolModel(name, signature, load, _decode, _CONTENT, prefix="/predictions/", put=True)


class Context:
    """The object that TorchServe passes to handlers along with the data. The method names are TorchServe's.

    Args:
        manifest: content of MANIFEST.json
        folder: where the archive was unpacked
        batch_size: largest number of requests in a call
        config: content of the archive's model-config.yaml
    """

    def __init__(
        self, manifest: dict[str, Any], folder: str, batch_size: int, config: dict[str, Any]
    ) -> None:
        self.manifest = manifest
        self.model_name = manifest["model"]["modelName"]
        self.model_yaml_config = config
        self.system_properties: dict[str, Any] = {
            "model_dir": folder,
            # Its devices are those that CUDA_VISIBLE_DEVICES leaves to the worker.
            "gpu_id": 0 if has_gpu() else None,
            "batch_size": batch_size,
            "server_name": "pytriton-daemon",
            "server_version": "",
            "limit_max_image_pixels": True,
        }
        self.metrics = Metrics()
        self.explain = False
        self.request_ids: dict[int, str] = {}
        self._statuses: dict[int, tuple[int, str]] = {}

    def begin(self, size: int) -> None:
        """Begin a batch."""
        self.request_ids = {index: uuid.uuid4().hex for index in range(size)}
        self._statuses = {}

    def get_request_id(self, idx: int = 0) -> str | None:
        """Return the id of a request."""
        return self.request_ids.get(idx)

    def get_request_header(self, idx: int, key: str) -> str | None:
        """Return None: headers are not passed on."""
        return None

    def get_all_request_header(self, idx: int) -> dict[str, str]:
        """Return an empty dict: headers are not passed on."""
        return {}

    def set_response_content_type(self, idx: int, value: str) -> None:
        """Do nothing: all responses of a route have one type."""

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Do nothing: responses have no headers of their own."""

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Set the status of a response; a status of 400 or more makes it an error."""
        self._statuses[idx] = (code, phrase)

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        """Set the status of all responses in the batch."""
        self._statuses = dict.fromkeys(self.request_ids, (code, phrase))

    def get_response_status(self, idx: int) -> tuple[int, str]:
        """Return the status code of a response, and its reason phrase."""
        return self._statuses.get(idx, (200, ""))


class Metrics:
    """The metrics of a context; they are ignored."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


class Service:
    """An initialized handler, called with the data of a batch.

    Args:
        handler: as in the manifest: a file, a file and a function, or one of TorchServe's own
        context: for the handler
        hold: kept while the handler is

    Raises:
        FormatError: the handler does not exist, or is not one.
    """

    def __init__(self, handler: str, context: Context, hold: object = None) -> None:
        self._context = context
        self._hold = hold
        module, function = _imported(handler, context.system_properties["model_dir"])
        if hasattr(module, function):
            self._handle = getattr(module, function)
            self._handle(None, context)
        else:
            service = _service_class(module)()
            self._handle = getattr(service, "handle", None) or _Steps(service)
            service.initialize(context)

    def __call__(self, data: list[Any]) -> list[Any]:
        """Return the response to each request, or its error."""
        self._context.begin(len(data))
        try:
            results = self._handle(data, self._context)
        except Exception as error:
            # PredictionException of TorchServe's utilities
            if isinstance(getattr(error, "error_code", None), int):
                raise HTTPError(error.error_code, str(getattr(error, "message", error))) from error  # type: ignore[attr-defined]
            raise
        if not isinstance(results, (list, tuple)) or len(results) != len(data):
            raise ValueError(
                f"the handler must return a list with one item for each of the {len(data)} requests, got {results!r:.100}"
            )
        return [self._response(index, one) for index, one in enumerate(results)]

    def _response(self, index: int, result: Any) -> Any:
        status, phrase = self._context.get_response_status(index)
        if status >= 400:
            return HTTPError(status, phrase or (result if isinstance(result, str) else ""))
        if isinstance(result, (bytes, bytearray, str)):
            return msgspec.Raw(result)  # as it is, like TorchServe
        return result


class _Steps:
    """The entry point of a handler that defines only the steps (`preprocess`, `inference` and `postprocess`)."""

    def __init__(self, service: Any) -> None:
        self._service = service

    def __call__(self, data: list[Any], context: Context) -> Any:
        service = self._service
        return service.postprocess(service.inference(service.preprocess(data)))


# ── the archive ───────────────────────────────────────────────────────────────────────────────────


def _member(path: Path, name: str) -> bytes:
    if path.is_dir():
        return (path / name).read_bytes()
    with zipfile.ZipFile(path) as packed:
        return packed.read(name)


def _config(path: Path, name: str) -> dict[str, Any]:
    if not name:
        return {}
    try:
        yaml = importlib.import_module("yaml")
    except ModuleNotFoundError:
        raise FormatError(
            f"{path} has a {name}, which needs pyyaml: {sys.executable} -m pip install pyyaml"
        ) from None
    return dict(yaml.safe_load(_member(path, os.path.basename(name))) or {})


def _unpacked(path: Path) -> Path:
    """Return the folder with an archive's content, which all workers of this user share."""
    if path.is_dir():
        return path
    status = path.stat()
    about = f"{path}\0{status.st_mtime_ns}\0{status.st_size}"
    folder = _cache() / f"{path.stem}-{hashlib.sha256(about.encode()).hexdigest()[:24]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Names as in pytriton/_host/install/cache_usage.py.
    with open(folder.with_name(f".{folder.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            draft = folder.with_name(f".{folder.name}.tmp-{os.getpid()}")
            try:
                with zipfile.ZipFile(path) as packed:
                    packed.extractall(draft)
                draft.rename(folder)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        os.utime(folder)
    return folder


def _held(folder: Path) -> mmap.mmap:
    """Map a file in a folder, to keep `pytriton-daemon cache --prune` from removing the folder."""
    with open(folder / _MANIFEST, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _cache() -> Path:
    # Same order as in pytriton/_host/install/cache.py; this folder is a part of that cache.
    own = os.environ.get("PYTRITON_DAEMON_CACHE_DIR", "")
    if own:
        return Path(own).expanduser().absolute() / "archives"
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(xdg) if xdg.startswith("/") else Path.home() / ".cache"
    return base / "pytriton-daemon" / "archives"


# ── the handler ───────────────────────────────────────────────────────────────────────────────────


def _imported(handler: str, folder: str) -> tuple[ModuleType, str]:
    """Return the handler's module, and the name of its entry point if that is a function."""
    file, _, function = handler.partition(":")
    name = os.path.basename(file).removesuffix(".py")
    if not (Path(folder) / f"{name}.py").exists():
        try:
            return importlib.import_module(f"ts.torch_handler.{name}"), function or "handle"
        except ModuleNotFoundError as error:
            if error.name not in ("ts", "ts.torch_handler", f"ts.torch_handler.{name}"):
                raise
            raise FormatError(
                f"the handler {handler!r} is not in the archive; if it is one of TorchServe's own, install TorchServe: {sys.executable} -m "
                "pip install torchserve"
            ) from None
    sys.path.insert(0, folder)
    return importlib.import_module(name), function or "handle"


def _service_class(module: ModuleType) -> type:
    """Return a module's handler class."""
    found = [
        one
        for one in vars(module).values()
        if inspect.isclass(one)
        and one.__module__ == module.__name__
        and hasattr(one, "initialize")
        and (hasattr(one, "handle") or hasattr(one, "inference"))
    ]
    leaves = [one for one in found if not any(issubclass(two, one) for two in found if two != one)]
    if len(leaves) != 1:
        raise FormatError(
            f"{module.__file__} must define a function `handle` or one class with `initialize` and `handle`; found "
            f"{', '.join(one.__name__ for one in leaves) or 'none'}"
        )
    return leaves[0]


# ── bodies ────────────────────────────────────────────────────────────────────────────────────────


def _decode(body: bytes, content_type: str) -> Arguments:
    """Return a request as TorchServe passes it: its fields by name, or the body as `body`."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == "multipart/form-data":
        fields: Iterable[Any] = parse_multipart(body, content_type)
    elif media_type == "application/x-www-form-urlencoded" and body[:1] not in (b"{", b"["):
        fields = parse_form(body)
    else:
        return Arguments([], {"data": {"body": _value(body, media_type)}})
    return Arguments([], {"data": {one.name: _value(one.data, one.content_type) for one in fields}})


def _value(data: bytes, content_type: str) -> Any:
    """Convert a value according to its content type: to JSON, text or bytes."""
    media_type = content_type.partition(";")[0].strip().lower()
    try:
        if media_type == _JSON:
            return json.loads(data)
        return data.decode() if media_type.startswith("text/") else data
    except ValueError as error:
        raise Problem(400, f"The body is not valid {media_type}: {error}") from None
