"""The interface of a system: how to install it, start it with one model, and ask it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from benchmarks import environments
from benchmarks.load.wire import Request
from benchmarks.workloads import Workload

SERVERS = Path(__file__).parents[1] / "servers"


@dataclass(frozen=True)
class Ports:
    """Free ports on 127.0.0.1 for one server."""

    http: int
    grpc: int
    metrics: int
    openai: int

    @property
    def http_base(self) -> str:
        """URL of the HTTP endpoint, without a path."""
        return f"http://127.0.0.1:{self.http}"

    @property
    def grpc_base(self) -> str:
        """URL of the gRPC endpoint as h2load takes it."""
        return f"http://127.0.0.1:{self.grpc}"


class System(ABC):
    """One system; its server is a script in servers/ that gets a JSON file as its argument."""

    name: str
    title: str
    script: str
    requirements: tuple[str, ...] = ()
    distributions: tuple[str, ...] = ()  #: whose versions are reported
    protocols: tuple[str, ...] = ("http",)
    #: How it is configured, for the report.
    note = ""
    #: The setting `frontend` of its daemon; "": it has no such thing, or its default.
    frontend = ""
    #: What it tells of itself: "off" less than usual, "all" as much as it can; "": as usual.
    recording = ""
    #: Batching of the identities, where it is an option.
    batching = False
    #: It serves a folder with a model.py.
    model_folders = False
    #: It serves typed functions, and nothing else.
    typed = False
    #: It uses CPU while nobody asks it: it is started for its own turns only.
    restless = False

    def python(self) -> Path:
        """Return the interpreter to run the server with; makes the environment.

        Raises:
            NotInstalled: it could not be made.
        """
        name = re.split(r"[\[=<>]", self.requirements[0])[0]
        return environments.ensure(name, self.requirements)

    def versions(self) -> dict[str, str]:
        """Return the versions of what is measured."""
        return environments.versions(self.python(), self.distributions)

    def environment(self) -> dict[str, str]:
        """Return variables that its server needs besides this process's."""
        return {}

    def serves(self, workload: Workload) -> bool:
        """Return True if a workload is of the kind that the system is for: typed functions, or tensors."""
        return self.typed == (workload.group == "typed")

    def refuses(self, workload: Workload) -> str | None:
        """Return why it cannot serve a workload; None when it can."""
        return None

    @abstractmethod
    def request(self, workload: Workload, protocol: str, ports: Ports) -> Request:
        """Return what clients send to it."""
