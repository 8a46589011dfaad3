"""The example that `pytriton check` runs: a model that adds and subtracts, served and called in one process or in two.

python -m pytriton.check.add_sub serve HTTP_PORT GRPC_PORT METRICS_PORT
python -m pytriton.check.add_sub ask URL TIMEOUT_S
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.check.monitoring import TestMonitoringContext
from pytriton.check.scripts import ScriptThread, module_command
from pytriton.check.utils import DEFAULT_LOG_FORMAT, find_free_ports
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor

if TYPE_CHECKING:
    from pytriton.triton import Triton, TritonConfig

NAME = "AddSub"
_LOCAL = "127.0.0.1"
logger = logging.getLogger("pytriton.check")


class ExampleError(Exception):
    """The example failed; the text says why."""


@batch
def add_sub(a: Any, b: Any) -> Any:
    """Return the sum and the difference of the inputs."""
    return {"add": a + b, "sub": a - b}


def bind(triton: Triton) -> None:
    """Bind the model."""
    pair = ("a", "b"), ("add", "sub")
    inputs, outputs = (
        [Tensor(name=name, dtype=np.float32, shape=(-1,)) for name in names] for names in pair
    )
    triton.bind(NAME, add_sub, inputs, outputs, config=ModelConfig(max_batch_size=128))


def ask(url: str, timeout_s: float) -> None:
    """Call the model once and check the result.

    Raises:
        ExampleError: the result is wrong
        PyTritonClientError: the call failed
    """
    from pytriton.client import ModelClient

    a = np.linspace(-1, 1, 256, dtype=np.float32).reshape(2, 128)
    b = np.full((2, 128), 2, np.float32)
    with ModelClient(url, NAME, init_timeout_s=timeout_s) as client:
        answer = client.infer_batch(a, b)
    if not np.array_equal(answer["add"], a + b) or not np.array_equal(answer["sub"], a - b):
        raise ExampleError(f"the model returned a wrong result: {answer}")
    logger.info("%s was called over %s and returned the expected result", NAME, url)


def in_one_process(timeout_s: float) -> None:
    """Serve and call the model in this process, over HTTP and gRPC.

    Raises:
        Exception: the example failed
    """
    import psutil

    from pytriton.triton import Triton

    ports = find_free_ports(3)
    with (
        TestMonitoringContext(logger, loglevel=logging.INFO),
        Triton(config=_config(ports)) as triton,
    ):
        bind(triton)
        for url in _urls(ports):
            ask(url, timeout_s)
        if not triton.is_alive():
            raise ExampleError("the server responded, but is_alive() returned False")
    left = psutil.Process().children(recursive=True)
    if left:
        raise ExampleError(f"the server has stopped, but these processes are still running: {left}")
    logger.info("the server has stopped and cleaned up")


def as_scripts(timeout_s: float) -> None:
    """Serve the model in one process and call it from another, as users' scripts do; then interrupt the server.

    Raises:
        ExampleError: a process failed
        Exception: the example failed for another reason
    """
    ports = find_free_ports(3)
    module = "pytriton.check.add_sub"
    serve = module_command(sys.executable, module, "serve", *map(str, ports))
    with ScriptThread(serve, name="server", on_line=_print("server")) as server:
        for url in _urls(ports):
            command = module_command(sys.executable, module, "ask", url, str(timeout_s))
            with ScriptThread(command, name="client", on_line=_print("client")) as client:
                _join(client, server, timeout_s)
            if client.returncode != 0:
                raise ExampleError(f"the client exited with code {client.returncode}")
    if server.returncode != 0:
        raise ExampleError(
            f"the server exited with code {server.returncode}, not 0, after it was interrupted"
        )
    logger.info("the server was interrupted, and exited cleanly")


def _join(client: ScriptThread, server: ScriptThread, timeout_s: float) -> None:
    """Wait until the client has exited; raise if the server exits first, or if the timeout expires."""
    for _ in range(max(1, round(timeout_s))):
        client.join(1)
        if not client.is_alive():
            return
        if not server.is_alive():
            raise ExampleError(f"the server exited with code {server.returncode} during the call")
    raise ExampleError(f"the client got no answer within {timeout_s:g} s")


def _print(name: str) -> Any:
    return lambda line: print(f"{name}: {line}", flush=True)  # noqa: T201, output for the user


def _config(ports: Sequence[int]) -> TritonConfig:
    from pytriton.triton import TritonConfig

    return TritonConfig(
        http_port=ports[0],
        grpc_port=ports[1],
        metrics_port=ports[2],
        http_address=_LOCAL,
        grpc_address=_LOCAL,
        metrics_address=_LOCAL,
    )


def _urls(ports: Sequence[int]) -> list[str]:
    return [f"http://{_LOCAL}:{ports[0]}", f"grpc://{_LOCAL}:{ports[1]}"]


def _main(verb: str, *arguments: str) -> None:
    logging.basicConfig(level=logging.INFO, format=DEFAULT_LOG_FORMAT)
    if verb == "ask":
        ask(arguments[0], float(arguments[1]))
        return
    from pytriton.triton import Triton

    triton = Triton(config=_config([int(port) for port in arguments]))
    bind(triton)
    triton.serve()


if __name__ == "__main__":
    _main(*sys.argv[1:])
