"""Imports and packs a callable in a new process, so that `serve` gets the newest version of all modules.

The serving process itself sends the registration, because the model ends when the process that registered it exits::

    serve ── PackRequest ──▶ new interpreter: import, check, pickle
          ◀── Packed or Refused ──
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import traceback
from typing import Any, Optional, Union

import msgspec

from pytriton._protocol import linux, messages
from pytriton._register import environments, target
from pytriton._register.environment import find_interpreter, is_installed, own_interpreter
from pytriton._register.tool_models import path_of, prepare_tool
from pytriton.exceptions import PyTritonError
from pytriton.formats.table import tool_of

__all__ = ["PackRequest", "Packed", "Packer", "Refused"]


class PackRequest(msgspec.Struct, frozen=True):
    """What to import, and how to register it.

    Args:
        target: FILE.py:FUNCTION, MODULE:FUNCTION, or either without a function if only one can be served
        options: keyword arguments of `DaemonClient.register`
    """

    target: str
    options: dict[str, Any]


class Packed(msgspec.Struct, frozen=True, tag=True):
    """A registration to send.

    Attributes:
        message: a `messages.Register`
        payloads: the payloads of the message
        folders: folders of the imported modules that are not installed
    """

    message: bytes
    payloads: list[bytes]
    folders: list[str]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The callable cannot be imported or registered; `error` may contain a traceback."""

    error: str
    folders: list[str]


class Packer:
    """Packs a callable any number of times, each time in a new process.

    Use it from the main thread, because each process exits with the thread that started it.

    Args:
        python: the workers' interpreter or environment, which imports the callable; None for this process's
    """

    def __init__(self, python: Optional[str] = None) -> None:
        self._python = own_interpreter() if python is None else find_interpreter(python)
        self._packages = None if python is None else environments.worker_packages(self._python)
        self._process: Optional[subprocess.Popen[bytes]] = None

    def prepare(self) -> None:
        """Start the next process. It imports our modules, and waits for a request."""
        if self._process is None:
            self._process = _start(self._python, self._packages)

    def pack(self, request: PackRequest) -> Union[Packed, Refused]:
        """Import the callable, and return its registration or the reason why there is none."""
        self.prepare()
        process = self._process
        assert process is not None  # started above
        data, _ = process.communicate(msgspec.msgpack.encode(request))  # or `close` ends it
        self._process = None
        code = process.returncode
        if code != 0 or not data:
            how = f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"
            return Refused(f"the process that imported {request.target} {how}", [])
        answer: Union[Packed, Refused] = msgspec.msgpack.decode(data, type=Union[Packed, Refused])
        return answer

    def close(self) -> None:
        """Kill the process, whether it is waiting for a request or was interrupted."""
        if self._process is not None:
            self._process.kill()
            with self._process:  # closes its pipes, and waits
                self._process = None


def _start(python: str, packages: Optional[str]) -> subprocess.Popen[bytes]:
    code = f"from {__name__} import main; main({os.getpid()})"
    return subprocess.Popen(
        [python, "-c", environments.code_with_our_library(code, packages)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the process that serves
    )


def main(parent: int) -> None:
    """Read a request, import and pack the model, and write the answer. Runs in the new process."""
    linux.die_with_parent(parent)
    from pytriton._register import message  # noqa: F401  before the request arrives
    from pytriton.typed import model  # noqa: F401

    data = sys.stdin.buffer.read()
    if not data:
        return
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the module prints
    answer = _answer(msgspec.msgpack.decode(data, type=PackRequest))
    with contextlib.suppress(BrokenPipeError), answers:
        answers.write(msgspec.msgpack.encode(answer))
    os._exit(0)  # without waiting for threads that the module has started


def _answer(request: PackRequest) -> Union[Packed, Refused]:
    error: Optional[str] = None
    try:
        packed = _pack(request)
    except PyTritonError as failure:
        error = str(failure)
    except Exception:
        error = traceback.format_exc().rstrip()
    folders = _folders(request.target)
    return Refused(error, folders) if error is not None else Packed(*packed, folders)


def _pack(request: PackRequest) -> tuple[bytes, list[bytes]]:
    from pytriton._register.message import plan

    options = target.restored(request.options)
    name = request.target
    model_name = options.pop("model_name", None)
    if tool_of(name) is not None:
        prepared, payloads = prepare_tool(name, model_name, None, None, options, None)
        return messages.encode(prepared), payloads
    found = target.load_target(name) if ":" in name else target.load_only_target(name)
    if not options.get("factory"):
        target.check_declared(found, name)
    planned = plan(found, model_name, None, None, None, options)
    payloads = planned.payloads()
    return messages.encode(planned.message), payloads


def _folders(name: str) -> list[str]:
    """Return the folders of the imported modules that are not installed, and the first folder of the search path.

    For another tool's model, return the folder of its file.
    """
    tool = tool_of(name)
    if tool is not None:
        return [os.path.dirname(os.path.abspath(path_of(tool[1])))]
    files = [getattr(module, "__file__", None) for module in [*sys.modules.values()]]
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
    own = {
        os.path.dirname(os.path.abspath(one))
        for one in files
        if one and not one.startswith(ours) and not is_installed(one)
    }
    return sorted({*own, sys.path[0]})
