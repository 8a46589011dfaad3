"""Loads a Triton Python model from its folder or its class."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NoReturn

from pytriton import pb_utils
from pytriton._protocol import messages
from pytriton.pb_utils import host
from pytriton.worker.callables import LoadError, load_object
from pytriton.worker.memory_modules import make_package
from pytriton.worker.python_model.backend_host import WorkerHost
from pytriton.worker.python_model.batches import LoadedPythonModel, instance_arguments
from pytriton.worker.python_model.readiness import wait_ready
from pytriton.worker.request_log import CallLog


def load_python_model(
    payload: bytes,
    spec: messages.ModelSpec,
    instance: int,
    log: CallLog,
    *,
    endpoint: str,
    worker: str,
    begun: float,
) -> LoadedPythonModel:
    """Import and construct the model, call its `initialize`, and wait for its `is_ready` if it has one.

    Args:
        payload: the pickled class, if the model has no folder
        spec: the model's specification
        instance: the number of the instance
        log: receives the model's reports about its calls
        endpoint: the dispatcher's endpoint, to which the model's own control requests go
        worker: the worker's name
        begun: when the load timeout started (`time.monotonic`)

    Raises:
        LoadError: the file or the class does not exist, or the model did not become ready.
        Exception: anything that the model raises.
    """
    model = spec.python_model
    assert model is not None
    pb_utils.install()
    folder = Path(model.folder) / str(spec.version) if model.folder else None
    ours = WorkerHost(worker, spec.name, None if folder is None else str(folder), endpoint)
    host.use(ours)
    made = model_class(folder, model.file) if folder is not None else load_object(payload, spec)
    loaded = made() if inspect.isclass(made) else made
    arguments = instance_arguments(spec, instance)
    if not callable(getattr(loaded, "execute", None)):
        raise LoadError(f"model {spec.name}: class {type(loaded).__name__} has no method `execute`")
    if hasattr(loaded, "initialize"):
        loaded.initialize(arguments)
    ours.is_serving = True
    if hasattr(loaded, "is_ready"):
        wait_ready(spec.name, loaded.is_ready, spec.load_timeout_s, begun)
    return LoadedPythonModel(spec, loaded, arguments["model_instance_name"], log)


class _Source(SourceFileLoader):
    """Loader that always compiles the source.

    Python considers cached bytecode up to date if the source's size and modification time in seconds are unchanged, which
    is possible when a model is edited and reloaded.
    """

    def path_stats(self, path: str) -> NoReturn:
        """Raise OSError, so that no bytecode is read or written."""
        raise OSError(f"the bytecode of {path} is not cached")


def model_class(folder: Path, file: str) -> Any:
    """Import `file` from a version folder as Triton does; return its class `TritonPythonModel`.

    The version folder and the model's folder are added to the search path. The module belongs to a package named after
    the version, so that relative imports work.

    Raises:
        LoadError: the file or the class does not exist.
        Exception: anything that the import raises.
    """
    path = folder / file
    if not path.is_file():
        raise LoadError(f"{path} does not exist")
    for entry in (str(folder), str(folder.parent)):
        if entry not in sys.path:
            sys.path.append(entry)
    make_package(folder)
    name = f"{folder.name}.{path.stem}"
    found = importlib.util.spec_from_file_location(name, path, loader=_Source(name, str(path)))
    assert found is not None  # it ends in .py
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    found.loader.exec_module(module)
    if not hasattr(module, "TritonPythonModel"):
        raise LoadError(f"{path} defines no class TritonPythonModel")
    return module.TritonPythonModel
