"""Checks for settings that contradict each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton._host.settings import frontend_choice, grpc_tls

if TYPE_CHECKING:
    from pytriton._host.settings.declarations import DaemonConfig


def contradictions(config: DaemonConfig) -> list[str]:
    """Return the conflicts between settings that are each valid on their own."""
    problems = []
    if not (config.allow_http or config.allow_grpc):
        problems.append("allow_http and allow_grpc are both false: clients could not send requests")
    problems += _of_management(config)
    problems += grpc_tls.problems(config)
    problems += frontend_choice.problems(config)
    if config.load_model and config.model_control_mode != "explicit":
        problems.append(
            "load_model needs model_control_mode explicit: otherwise all models are loaded"
        )
    if config.model_control_mode != "none" and not config.model_repository:
        problems.append(f"model_control_mode {config.model_control_mode} needs a model_repository")
    taken: dict[int, str] = {}
    for endpoint in ("http", "grpc", "metrics"):
        port = getattr(config, f"{endpoint}_port")
        if not getattr(config, f"allow_{endpoint}") or port == 0:
            continue
        if port in taken:
            same = f"{taken[port]} and {endpoint}_port are both {port}"
            problems.append(f"{same}: each needs its own port")
        taken.setdefault(port, f"{endpoint}_port")
    return problems


def _of_management(config: DaemonConfig) -> list[str]:
    problems = []
    if (config.management_certificate is None) != (config.management_key is None):
        problems.append(
            "management_certificate and management_key go together: set both or neither"
        )
    if config.management_certificate is not None and config.management_unix_socket is not None:
        problems.append(
            "management_unix_socket does not support TLS: remove either it or management_certificate"
        )
    return problems
