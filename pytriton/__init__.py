"""Serve Python callables through NVIDIA Triton Inference Server, with a daemon that any process can use.

Importing this package starts nothing and loads no other module: public names are imported on first use (PEP 562), so
that `import pytriton` is cheap in workers, commands and notebooks.

    >>> import pytriton                                          # doctest: +SKIP
    >>> client = pytriton.connect()                              # doctest: +SKIP
    >>> client.register(infer_fn, model_name="linear", ...)      # doctest: +SKIP

Inside tritonserver, the proxy finds an empty file in place of this one, which the dispatcher has put there. Therefore
nothing in `pytriton._protocol` or `pytriton.proxy_backend` may use a name defined here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytriton.autoscale import Autoscale as Autoscale
    from pytriton.buffers import empty_output as empty_output
    from pytriton.calls import async_infer as async_infer
    from pytriton.calls import async_stream as async_stream
    from pytriton.calls import infer as infer
    from pytriton.calls import stream as stream
    from pytriton.daemon import connect as connect
    from pytriton.declaration import declare as declare
    from pytriton.decorators import batch as batch
    from pytriton.exceptions import HTTPError as HTTPError
    from pytriton.foreground import serve as serve
    from pytriton.limits import Limits as Limits
    from pytriton.model_config import DynamicBatcher as DynamicBatcher
    from pytriton.model_config import ModelConfig as ModelConfig
    from pytriton.model_config import QueuePolicy as QueuePolicy
    from pytriton.model_config import Tensor as Tensor
    from pytriton.shared_weights import shared as shared
    from pytriton.typed import MediaType as MediaType
    from pytriton.typed import UploadFile as UploadFile
    from pytriton.typed import batchable as batchable

    __version__: str

#: Public name -> the module that defines it.
_NAMES = {
    "Autoscale": "pytriton.autoscale",
    "DynamicBatcher": "pytriton.model_config",
    "HTTPError": "pytriton.exceptions",
    "Limits": "pytriton.limits",
    "MediaType": "pytriton.typed",
    "ModelConfig": "pytriton.model_config",
    "QueuePolicy": "pytriton.model_config",
    "Tensor": "pytriton.model_config",
    "UploadFile": "pytriton.typed",
    "async_infer": "pytriton.calls",
    "async_stream": "pytriton.calls",
    "batch": "pytriton.decorators",
    "batchable": "pytriton.typed",
    "connect": "pytriton.daemon",
    "declare": "pytriton.declaration",
    "empty_output": "pytriton.buffers",
    "infer": "pytriton.calls",
    "serve": "pytriton.foreground",
    "shared": "pytriton.shared_weights",
    "stream": "pytriton.calls",
}

#: Modules reachable as attributes after a plain `import pytriton`.
_MODULES = (
    "client",
    "daemon",
    "decorators",
    "declaration",
    "exceptions",
    "limits",
    "model_config",
    "runner",
    "triton",
)

#: Resolved by __getattr__ below.
__all__ = [
    "Autoscale",
    "DynamicBatcher",
    "HTTPError",
    "Limits",
    "MediaType",
    "ModelConfig",
    "QueuePolicy",
    "Tensor",
    "UploadFile",
    "__version__",
    "async_infer",
    "async_stream",
    "batch",
    "batchable",
    "connect",
    "declare",
    "empty_output",
    "infer",
    "serve",
    "shared",
    "stream",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, and store it so that this function is called once per name."""
    if name in _NAMES:
        value = getattr(import_module(_NAMES[name]), name)
    elif name in _MODULES:
        return import_module(f"{__name__}.{name}")  # importing binds the attribute itself
    elif name == "__version__":
        value = _installed_version()
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})


def _installed_version() -> str:
    # Imported here because it costs more than the rest of this file.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pytriton-daemon")
    except PackageNotFoundError:
        return "0+not.installed"  # on sys.path, but not an installed distribution
