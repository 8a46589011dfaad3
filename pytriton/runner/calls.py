"""A runner's methods: the calls of tritonclient that BentoML's guide lists, blocking or as coroutines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from pytriton.exceptions import ModelNotFoundError
from pytriton.runner.daemon_connection import ConnectionProvider, DaemonConnection
from pytriton.runner.result import InferResult, message_as_json

__all__ = ["AsyncCalls", "Calls", "SyncCalls"]

Headers = Mapping[str, str]


class Calls:
    """tritonclient's calls, with the same names, arguments and results.

    `as_json` has no effect over HTTP, where all results are JSON. The daemon's access token is sent with each call.
    """

    def __init__(self, links: ConnectionProvider) -> None:
        self._links = links

    def _call(self, method: str, headers: Headers | None, arguments: dict[str, Any]) -> Any:
        """Call a method of tritonclient's client."""
        raise NotImplementedError

    def _ask(self, question: Callable[[DaemonConnection], Any]) -> Any:
        """Call a function with the connection. Used for calls that need the daemon as well as tritonserver."""
        raise NotImplementedError

    # ── models ───────────────────────────────────────────────────────────────────────────────────

    def get_model_config(
        self,
        model_name: str,
        model_version: str = "",
        headers: Headers | None = None,
        as_json: bool = False,
    ) -> Any:
        """Return the configuration of a model."""
        return self._call("get_model_config", headers, _own_arguments(locals()))

    def get_model_metadata(
        self,
        model_name: str,
        model_version: str = "",
        headers: Headers | None = None,
        as_json: bool = False,
    ) -> Any:
        """Return the inputs and outputs of a model."""
        return self._call("get_model_metadata", headers, _own_arguments(locals()))

    def get_model_repository_index(
        self, headers: Headers | None = None, as_json: bool = False
    ) -> Any:
        """Return all models in the repositories with their states, including models that workers serve."""
        return self._ask(lambda daemon: _merged_index(daemon, dict(headers or {}), as_json))

    def is_model_ready(
        self, model_name: str, model_version: str = "", headers: Headers | None = None
    ) -> Any:
        """Return whether a model is ready for requests."""
        return self._call("is_model_ready", headers, _own_arguments(locals()))

    def load_model(
        self,
        model_name: str,
        headers: Headers | None = None,
        config: str | Mapping[str, Any] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> Any:
        """Load or reload a model from a repository.

        If it is already loaded, the old version serves until the new one is ready.

        Args:
            model_name: name of the model, which is that of its folder
            headers: headers of the request
            config: model configuration (JSON) that replaces the one in the folder
            files: path -> content of the model's files, used instead of the folder; only for models that tritonserver
                serves
        """
        document = json.loads(config) if isinstance(config, str) else config

        def load(link: DaemonConnection) -> None:
            if files is None:
                link.client.load_model(model_name, document)
            else:
                arguments = {
                    "model_name": model_name,
                    "config": json.dumps(document),
                    "files": files,
                }
                link.call("load_model", arguments, dict(headers or {}))
            link.forget()

        return self._ask(load)

    def unload_model(
        self, model_name: str, headers: Headers | None = None, unload_dependents: bool = False
    ) -> Any:
        """Stop serving a model, after its in-flight requests have been answered."""

        def unload(link: DaemonConnection) -> None:
            link.forget()
            try:
                link.client.unload_model(model_name)
            except ModelNotFoundError:
                arguments = {"model_name": model_name, "unload_dependents": unload_dependents}
                if model_name in [model.name for model in link.client.models()]:
                    raise  # registered by another client, which must unregister it
                link.call("unload_model", arguments, dict(headers or {}))

        return self._ask(unload)

    def get_inference_statistics(
        self,
        model_name: str = "",
        model_version: str = "",
        headers: Headers | None = None,
        as_json: bool = False,
    ) -> Any:
        """Return the cumulative statistics of one model or all models."""
        return self._call("get_inference_statistics", headers, _own_arguments(locals()))

    def infer(
        self,
        model_name: str,
        inputs: Any,
        model_version: str = "",
        headers: Headers | None = None,
        **options: Any,
    ) -> Any:
        """Call a model with inputs of tritonclient's class `InferInput`.

        `options` are those of tritonclient's `infer`.
        """
        arguments = {"model_name": model_name, "inputs": inputs, "model_version": model_version}
        return self._call("infer", headers, {**arguments, **options})

    # ── the server ───────────────────────────────────────────────────────────────────────────────

    def is_server_live(self, headers: Headers | None = None) -> Any:
        """Return whether the server is live."""
        return self._call("is_server_live", headers, {})

    def is_server_ready(self, headers: Headers | None = None) -> Any:
        """Return whether the server is ready for inference."""
        return self._call("is_server_ready", headers, {})

    def get_server_metadata(self, headers: Headers | None = None, as_json: bool = False) -> Any:
        """Return the name, version and extensions of the server."""
        return self._call("get_server_metadata", headers, _own_arguments(locals()))

    def get_log_settings(self, headers: Headers | None = None, as_json: bool = False) -> Any:
        """Return the log settings of the server."""
        return self._call("get_log_settings", headers, _own_arguments(locals()))

    def update_log_settings(
        self, settings: Mapping[str, Any], headers: Headers | None = None, as_json: bool = False
    ) -> Any:
        """Update the log settings of the server."""
        return self._call("update_log_settings", headers, _own_arguments(locals()))

    def get_trace_settings(
        self, model_name: str | None = None, headers: Headers | None = None, as_json: bool = False
    ) -> Any:
        """Return the trace settings of the server, or of one model."""
        return self._call("get_trace_settings", headers, _own_arguments(locals()))

    def update_trace_settings(
        self,
        model_name: str | None = None,
        settings: Mapping[str, Any] | None = None,
        headers: Headers | None = None,
        as_json: bool = False,
    ) -> Any:
        """Update the trace settings of the server, or of one model."""
        settings = settings or {}
        return self._call("update_trace_settings", headers, _own_arguments(locals()))

    # ── shared memory ────────────────────────────────────────────────────────────────────────────

    def get_system_shared_memory_status(
        self, region_name: str = "", headers: Headers | None = None, as_json: bool = False
    ) -> Any:
        """Return the registered regions of system shared memory."""
        return self._call("get_system_shared_memory_status", headers, _own_arguments(locals()))

    def register_system_shared_memory(
        self, name: str, key: str, byte_size: int, offset: int = 0, headers: Headers | None = None
    ) -> Any:
        """Register a region of system shared memory."""
        return self._call("register_system_shared_memory", headers, _own_arguments(locals()))

    def unregister_system_shared_memory(
        self, name: str = "", headers: Headers | None = None
    ) -> Any:
        """Unregister one region of system shared memory, or all of them."""
        return self._call("unregister_system_shared_memory", headers, _own_arguments(locals()))

    def get_cuda_shared_memory_status(
        self, region_name: str = "", headers: Headers | None = None, as_json: bool = False
    ) -> Any:
        """Return the registered regions of CUDA shared memory."""
        return self._call("get_cuda_shared_memory_status", headers, _own_arguments(locals()))

    def register_cuda_shared_memory(
        self,
        name: str,
        raw_handle: bytes,
        device_id: int,
        byte_size: int,
        headers: Headers | None = None,
    ) -> Any:
        """Register a region of CUDA shared memory."""
        return self._call("register_cuda_shared_memory", headers, _own_arguments(locals()))

    def unregister_cuda_shared_memory(self, name: str = "", headers: Headers | None = None) -> Any:
        """Unregister one region of CUDA shared memory, or all of them."""
        return self._call("unregister_cuda_shared_memory", headers, _own_arguments(locals()))


class SyncCalls(Calls):
    """tritonclient's calls as blocking methods."""

    def _call(self, method: str, headers: Headers | None, arguments: dict[str, Any]) -> Any:
        link = self._links.link()
        answer = link.call(method, _arguments_for(link, arguments), dict(headers or {}))
        return InferResult(answer) if method == "infer" else answer

    def _ask(self, question: Callable[[DaemonConnection], Any]) -> Any:
        return question(self._links.link())


class AsyncCalls(Calls):
    """tritonclient's calls as coroutines."""

    async def _call(self, method: str, headers: Headers | None, arguments: dict[str, Any]) -> Any:
        link = await self._links.async_link()
        answer = await link.acall(method, _arguments_for(link, arguments), dict(headers or {}))
        return InferResult(answer) if method == "infer" else answer

    async def _ask(self, question: Callable[[DaemonConnection], Any]) -> Any:
        return await asyncio.to_thread(question, await self._links.async_link())


def _own_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Return a method's arguments without `self` and `headers`, given its local variables."""
    return {name: value for name, value in given.items() if name not in ("self", "headers")}


def _arguments_for(link: DaemonConnection, arguments: dict[str, Any]) -> dict[str, Any]:
    if link.url.is_grpc:
        return arguments
    return {name: value for name, value in arguments.items() if name != "as_json"}


def _merged_index(daemon: DaemonConnection, headers: dict[str, str], as_json: bool) -> Any:
    """Return tritonserver's repository index, extended with the models that only the daemon knows.

    The result is a list of dicts over HTTP, and a protobuf message over gRPC, or a dict if `as_json` is True.

    Raises:
        PyTritonClientError, PyTritonDaemonError: tritonserver or the daemon does not respond.
    """
    answer = daemon.call(
        "get_model_repository_index", {"as_json": False} if daemon.url.is_grpc else {}, headers
    )
    known = {_name_of(one) for one in (answer.models if daemon.url.is_grpc else answer)}
    further = [
        {"name": one.name, "state": "UNAVAILABLE", "reason": one.reason or one.state}
        for one in daemon.client.repository()
        if one.name not in known
    ]
    if not daemon.url.is_grpc:
        return [*answer, *further]
    for entry in further:
        answer.models.add(**entry)
    return message_as_json(answer) if as_json else answer


def _name_of(entry: Any) -> str:
    return str(entry["name"] if isinstance(entry, dict) else entry.name)
