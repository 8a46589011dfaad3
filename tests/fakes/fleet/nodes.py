"""Fake nodes of a fleet that keep track of their models, and refuse or restart when the test says so."""

from __future__ import annotations

from typing import Any

from fakes.fake_dispatcher import FakeDispatcher, status
from pytriton._protocol import messages
from pytriton._protocol.messages.model_spec import registration_digest

SPEC = messages.ModelSpec("m", 1, {}, messages.WorkerEnvironment("py"), instances=2)


def info(name: str, instances: int = 1) -> messages.ModelInfo:
    there = [messages.InstanceInfo(index, "ready", 1) for index in range(instances)]
    return messages.ModelInfo(name, 1, "ready", there, url=f"http://h/{name}")


class Node(FakeDispatcher):
    """A node that keeps track of the models that it serves."""

    def __init__(self, *models: str) -> None:
        super().__init__()
        self.models = {name: "digest" for name in models}
        self.leases: dict[str, messages.Lease] = {}
        self.refuses: type | None = None
        self.restarts_on: type | None = None
        self.registers = True
        self.answers = {
            messages.GetStatus: lambda _: [status(*self._infos())],
            messages.ListModels: lambda _: [messages.Models(self._infos())],
            messages.Register: self._register,
            messages.Unregister: self._unregister,
            messages.Scale: lambda message: [
                self._or_refusal(message) or messages.Registered(info("m"))
            ],
            messages.Rollback: lambda message: [
                self._or_refusal(message) or messages.Registered(info("m"))
            ],
            messages.EndLease: self._end_lease,
            messages.RenewLease: lambda _: [messages.Done()],
            messages.GetRegistrations: self._registrations,
            messages.GetLogs: lambda _: [messages.LogLines(self.lines)],
        }
        self.lines: list[str] = []

    @property
    def path(self) -> str:
        return str(self.rundir.path)

    def changes(self) -> list[Any]:
        """Return the messages that change something on the node."""
        asked = (
            messages.GetStatus,
            messages.ListModels,
            messages.GetRegistrations,
            messages.GetLogs,
            messages.RenewLease,
        )
        return [one for one in self.heard if not isinstance(one, asked)]

    def _infos(self) -> list[messages.ModelInfo]:
        return [info(name) for name in self.models]

    def _or_refusal(self, message: Any) -> Any:
        if self.refuses is type(message):
            return messages.Failure("worker_failed", "no room")
        return None

    def _register(self, message: Any) -> list[Any]:
        refusal = self._or_refusal(message)
        if refusal is not None:
            return [refusal]
        restarts = self.restarts_on is messages.Register
        if self.registers or not restarts:
            digest = registration_digest(message.spec, self.payloads[-1])
            self.models[message.spec.name] = digest
            if message.spec.lease is not None:
                self.leases[message.spec.name] = message.spec.lease
        if restarts:
            self.die_and_come_back()
            return []
        return [messages.Progress("loading", "loads", 1, 2), messages.Registered(info("m"))]

    def _end_lease(self, message: Any) -> list[Any]:
        refusal = self._or_refusal(message)
        if refusal is not None:
            return [refusal]
        there = self.leases.pop(message.name, None)
        if there is None or there.id != message.lease:
            return [messages.Failure("not_found", "model m has no such lease")]
        if not message.keep:
            del self.models[message.name]
        return [messages.Done()]

    def _unregister(self, message: Any) -> list[Any]:
        if self.models.pop(message.name, None) is None:
            return [messages.Failure("not_found", f"no model {message.name}")]
        return [messages.Done()]

    def _registrations(self, message: Any) -> list[Any]:
        names = message.names or list(self.models)
        if any(name not in self.models for name in names):
            return [messages.Failure("not_found", "no such model")]
        payloads = [b"payload"] if message.payloads else []
        return [
            messages.Registrations(
                [messages.KeptRegistration(SPEC, self.models[name], payloads) for name in names]
            )
        ]
