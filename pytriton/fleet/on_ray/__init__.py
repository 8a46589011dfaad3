"""A fleet on a Ray cluster: Ray places the instances, and daemons run them.

    client ▶ controller (a detached actor): what should be served; its state is in Ray's key-value store
               │ creates a holder for each instance: an actor that only reserves Ray's resources. Ray places it, and
               │ places it again when its node dies
               ▼ makes each node's daemon serve as many instances as holders are on the node: `reconciler`
             node actor on each node ▶ its daemon ▶ workers

This package contains the actors and their client. Ray is an optional dependency, so it is imported only inside
functions. Payloads go through Ray's object store; inference requests do not.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from pytriton.exceptions import PyTritonBadParameterError, PyTritonDaemonError

INSTALL = "pip install ray"
#: Ray namespace of all actors of fleets.
NAMESPACE = "pytriton"
_CONNECT_S = 5.0
#: Ray's variable that turns on authentication with a token, in each process of the cluster and of its clients.
_AUTH_MODE = "RAY_AUTH_MODE"
#: Ray's switch, read from the variable of this name when Ray is imported.
_UV_RUN = "RAY_ENABLE_UV_RUN_RUNTIME_ENV"
#: Names of fleets are part of the names of actors, keys and folders. They must not contain a slash, so that no
#: name is a prefix of another fleet's keys.
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,39}")


def check_name(fleet: str) -> None:
    """Validate the name of a fleet.

    Raises:
        PyTritonBadParameterError: the name is invalid
    """
    if not isinstance(fleet, str) or not _NAME.fullmatch(fleet):
        raise PyTritonBadParameterError(
            f"{str(fleet)[:80]!r} is not a valid fleet name: use up to 40 letters, digits, '_', '-' and '.', "
            f"not beginning with '.'"
        )


def import_ray(module: str = "ray") -> Any:
    """Import and return Ray, or a module of it.

    Raises:
        PyTritonDaemonError: Ray is not installed; the message explains how to install it
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise PyTritonDaemonError(f"A fleet on Ray requires Ray: {INSTALL} ({error}).") from error


def connected(address: str | None) -> Any:
    """Connect to the cluster at an address ("auto": this machine's cluster) and return the module `ray`.

    Raises:
        PyTritonDaemonError: Ray is not installed, there is no such cluster, or it does not accept this process's token
    """
    ray = import_ray()
    if not ray.is_initialized():
        _check_that_it_answers(address)
        try:
            with _without_uv_run():
                ray.init(
                    address=address or "auto",
                    namespace=NAMESPACE,
                    log_to_driver=False,
                    logging_level="error",
                )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise PyTritonDaemonError(
                f"Could not connect to a Ray cluster at {address or 'auto'}: {error}. Start one with "
                f"`ray start --head`. {_token_advice()}"
            ) from error
        except ray.exceptions.RayError as error:  # this process has no token
            raise PyTritonDaemonError(
                f"Could not connect to a Ray cluster at {address or 'auto'}: {error}"
            ) from error
    return ray


@contextlib.contextmanager
def _without_uv_run() -> Iterator[None]:
    """Make Ray ignore that `uv run` started this process.

    Otherwise Ray would upload the working directory, and run the fleet's actors in an environment that uv creates for
    this process. Ray deletes that environment with its actor, but the daemons outlive their actors.
    """
    constants = import_ray("ray._private.ray_constants")
    enabled = getattr(constants, _UV_RUN, False)
    setattr(constants, _UV_RUN, False)
    try:
        yield
    finally:
        setattr(constants, _UV_RUN, enabled)


def _token_advice() -> str:
    """Return what to check if Ray rejects this process's token: Ray only reports that it could not connect."""
    if os.environ.get(_AUTH_MODE, "").lower() == "token":
        return (
            "If it is running, it may have another token than this process: see RAY_AUTH_TOKEN, the file that "
            "RAY_AUTH_TOKEN_PATH names, and ~/.ray/auth_token, in this order."
        )
    return f"If it requires a token, set {_AUTH_MODE}=token for this process, too, and provide the token."


def _check_that_it_answers(address: str | None) -> None:
    """Raise PyTritonDaemonError if nothing listens at the address.

    Ray itself would retry for a minute or two and then exit this process.
    """
    named = os.environ.get("RAY_ADDRESS", "") if address in (None, "auto") else str(address)
    host, _, port = named.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():  # Ray searches on this machine, or reports the error
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise PyTritonDaemonError(
            f"Nothing answers at {named}: {error}. Is Ray's head node running? Models are still served while it is down, but "
            f"changing the fleet requires it."
        ) from error
