"""Connects to a running daemon, to register callables as models, list the models, and unregister them.

Example::

    from pytriton.daemon import connect
    from pytriton.model_config import ModelConfig, Tensor

    client = connect()
    model = client.register(
        infer_fn,
        model_name="linear",
        inputs=[Tensor(name="x", dtype=np.float32, shape=(-1,))],
        outputs=[Tensor(name="y", dtype=np.float32, shape=(-1,))],
        config=ModelConfig(max_batch_size=64),
        instances=2,
    )
    print(model.url)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, overload

from pytriton._clash import clashing_distribution
from pytriton.daemon_client import DaemonClient, connect_daemon
from pytriton.exceptions import PyTritonBadParameterError, PyTritonDaemonError
from pytriton.served_model import Model

if TYPE_CHECKING:
    from pytriton.fleet.addresses import Nodes
    from pytriton.fleet.client import FleetClient
    from pytriton.fleet.on_ray.client import RayFleetClient
    from pytriton.run_options import StrPath

__all__ = ["DaemonClient", "Model", "connect"]


@overload
def connect(
    runtime_dir: StrPath | None = None,
    timeout_s: float = 5.0,
    *,
    key_file: str | Path | None = None,
) -> DaemonClient: ...


@overload
def connect(
    *, nodes: Nodes, timeout_s: float = 5.0, key_file: str | Path | None = None
) -> FleetClient: ...


@overload
def connect(*, fleet: str, ray_address: str | None = None) -> RayFleetClient: ...


def connect(
    runtime_dir: StrPath | None = None,
    timeout_s: float = 5.0,
    *,
    key_file: str | Path | None = None,
    nodes: Nodes | None = None,
    fleet: str | None = None,
    ray_address: str | None = None,
) -> DaemonClient | FleetClient | RayFleetClient:
    """Connect to a daemon, or to all daemons of a fleet, and return a client.

    Args:
        runtime_dir: the daemon's runtime directory. Default: `$PYTRITON_DAEMON_RUNTIME_DIR`,
            `$XDG_RUNTIME_DIR/pytriton-daemon`, `/run/pytriton-daemon` for root, or a folder of this user in the
            temporary directory. Or `tcp://HOST:PORT` of a daemon with the setting `control_tcp`, see
            docs/operations/security.md
        timeout_s: maximum wait for the daemon's response, in seconds
        key_file: key file for `tcp://`, written by `pytriton-daemon keys add`
        nodes: nodes of a fleet, instead of `runtime_dir`: `dns:NAME[:PORT]`, or a list of HOST[:PORT], see
            docs/operations/fleet.md. They are not contacted yet
        fleet: name of a fleet on a Ray cluster, instead of `runtime_dir` and `nodes`
        ray_address: address of the Ray cluster; default: this machine's cluster

    Raises:
        DaemonNotRunningError: no daemon is running there, or it does not respond; the message lists the places tried.
        PyTritonDaemonError: `nvidia-pytriton` is installed in the same environment, or the daemon
            at an address refuses the key.
    """
    clash = clashing_distribution()
    if clash is not None:
        raise PyTritonDaemonError(clash)
    if fleet is not None:
        from pytriton.fleet.on_ray.client import RayFleetClient

        return RayFleetClient(fleet, ray_address)
    if nodes is not None:
        from pytriton.fleet.client import FleetClient

        if runtime_dir is not None:
            raise PyTritonBadParameterError(
                "connect() takes either runtime_dir, for one daemon, or nodes, for several."
            )
        return FleetClient(nodes, timeout_s, key_file)
    return connect_daemon(runtime_dir, timeout_s, key_file=key_file)
