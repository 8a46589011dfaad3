"""Sets up a Python for tritonserver's own python backend when the first model needs it.

With the compiled proxy, few daemons need one: only for models of repositories that tritonserver itself serves, as set
by `python_backend_model`, and for models of other backends that are written in Python.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from pytriton._host.install.cache import ServerRuntimeError
from pytriton._host.install.server_runtime import (
    ServerRuntime,
    is_python_laid_out,
    lay_out_python,
    make_python_backend,
)
from pytriton._protocol.errors import ErrorKind, RemoteFailure

_log = structlog.get_logger(__name__)


class PythonOnDemand:
    """The python backend of a tritonserver whose backend directory is `backends`."""

    def __init__(self, runtime: ServerRuntime, backends: Path) -> None:
        self._runtime = runtime
        self._backends = backends
        self._there = is_python_laid_out(backends)
        self._out_of_reach = False
        self._lock = asyncio.Lock()

    @property
    def is_there(self) -> bool:
        """True if the python backend's Python is set up."""
        return self._there

    def is_needed(self, backend: str) -> bool:
        """Return True if tritonserver runs models of a backend in its python backend."""
        return backend == "python" or (self._backends / backend / "model.py").is_file()

    async def ensure_if_possible(self, model: str) -> None:
        """Call `ensure` for a model that may also work without the python backend: log a failure and do not retry."""
        if self._out_of_reach:
            return
        try:
            await self.ensure(model)
        except RemoteFailure as failure:
            self._out_of_reach = True  # an unreachable index takes a minute each time
            _log.warning("tritonserver's own python backend cannot be used", reason=failure.text)

    async def ensure(self, model: str) -> None:
        """Set up the python backend's Python if it is not set up yet. This may download packages.

        Raises:
            RemoteFailure: the Python cannot be found or set up; the text gives the reason and the fix.
        """
        async with self._lock:
            if self._there:
                return
            _log.info("tritonserver's own python backend is needed", model=model)
            try:
                python = await asyncio.to_thread(
                    make_python_backend, self._runtime, lambda line: _log.info(line)
                )
                lay_out_python(python, self._backends)
            except (ServerRuntimeError, OSError) as error:
                raise RemoteFailure(
                    ErrorKind.LOAD_FAILED,
                    f"model {model} needs tritonserver's own python backend, whose Python could not be installed: {error}. "
                    "To install it in advance, for example while building an image, run: "
                    "pytriton-daemon install-server --python-backend",
                ) from error
            self._there = True
