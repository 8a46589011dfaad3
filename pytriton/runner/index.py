"""The repository index: tritonserver's, merged with the daemon's state of models that workers serve."""

from __future__ import annotations

from typing import Any

from pytriton.runner.daemon_connection import DaemonConnection
from pytriton.runner.result import message_as_json

__all__ = ["merged_index"]


def merged_index(link: DaemonConnection, headers: dict[str, str], as_json: bool) -> Any:
    """Return the index in the protocol's format: a list of dicts (HTTP), or a message (gRPC; with `as_json` a dict).

    Raises:
        PyTritonClientError, PyTritonDaemonError: tritonserver or the daemon does not respond.
    """
    answer = link.call(
        "get_model_repository_index", {"as_json": False} if link.url.is_grpc else {}, headers
    )
    known = {_name(one) for one in (answer.models if link.url.is_grpc else answer)}
    further = [
        {"name": one.name, "state": "UNAVAILABLE", "reason": one.reason or one.state}
        for one in link.client.repository()
        if one.name not in known
    ]
    if not link.url.is_grpc:
        return [*answer, *further]
    for entry in further:
        answer.models.add(**entry)
    return message_as_json(answer) if as_json else answer


def _name(entry: Any) -> str:
    return str(entry["name"] if isinstance(entry, dict) else entry.name)
