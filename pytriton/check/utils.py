"""Helpers for testing scripts that serve models, under the names that PyTriton uses.

Example::

    from pytriton.check.utils import ScriptThread, find_free_port

    with ScriptThread(["python", "server.py", "--port", str(find_free_port())], name="server") as server:
        ...
        server.interrupt()
    assert server.returncode == 0, server.output
"""

from __future__ import annotations

import os
import re
import socket
from contextlib import ExitStack
from pathlib import Path

from pytriton.check.monitoring import (
    ProcessMonitoring,
    ProcessMonitoringThread,
    TestMonitoringContext,
)
from pytriton.check.scripts import ScriptThread

__all__ = [
    "DEFAULT_LOG_FORMAT",
    "ProcessMonitoring",
    "ProcessMonitoringThread",
    "ScriptThread",
    "TestMonitoringContext",
    "find_free_port",
    "find_free_ports",
    "get_current_container_version",
    "search_warning_on_too_verbose_log_level",
    "verify_docker_image_in_readme_same_as_tested",
]

DEFAULT_LOG_FORMAT = (
    "%(asctime)s - %(levelname)8s - %(process)8d - %(threadName)s - %(name)s: %(message)s"
)

_TOO_VERBOSE = re.compile(
    r"Triton Inference Server is running with enabled verbose logs \(log_verbose_level=\d+\)\. "
    r"It may affect inference performance\."
)
#: Environment variables in which NVIDIA's containers state their version.
_CONTAINER_VARIABLES = (
    "NVIDIA_PYTORCH_VERSION",
    "NVIDIA_TENSORFLOW_VERSION",
    "NVIDIA_JAX_VERSION",
    "NVIDIA_TRITON_SERVER_VERSION",
)


def find_free_port() -> int:
    """Return a TCP port that is currently unused on all interfaces.

    Another process may take the port before you use it. If possible, pass port 0 to the server instead.
    """
    return find_free_ports(1)[0]


def find_free_ports(count: int) -> list[int]:
    """Return several different unused TCP ports. Separate calls to `find_free_port` could return the same port twice."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("", 0))
        return [probe.getsockname()[1] for probe in probes]


def search_warning_on_too_verbose_log_level(logs: str) -> bool:
    """Return True if a log contains the warning that tritonserver's verbose logs may affect performance.

    Example:
        >>> search_warning_on_too_verbose_log_level("all is well")
        False
    """
    return _TOO_VERBOSE.search(logs) is not None


def get_current_container_version() -> str | None:
    """Return the version of the NVIDIA container in which this process runs, such as "24.07"; None outside of one."""
    return next((os.environ[name] for name in _CONTAINER_VARIABLES if os.environ.get(name)), None)


def verify_docker_image_in_readme_same_as_tested(
    readme_path: str | os.PathLike[str], image_name_with_version: str
) -> None:
    """Check that a README names the container image that was tested.

    Raises:
        AssertionError: the README does not contain the image's name
        OSError: the README cannot be read
    """
    text = Path(readme_path).read_text(encoding="utf-8")
    if image_name_with_version not in text:
        raise AssertionError(
            f"{os.fspath(readme_path)} does not contain the name of the tested image {image_name_with_version!r}. "
            "Change the file, or test the image that it names."
        )
