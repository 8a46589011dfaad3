"""Defines what the benchmark needs to know of a system: how to install, start and call it."""

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
    """A system. Its server is a script in servers/ that gets the path of a JSON file as its argument."""

    name: str
    title: str
    script: str
    requirements: tuple[str, ...] = ()
    distributions: tuple[str, ...] = ()  #: packages whose versions are reported
    protocols: tuple[str, ...] = ("http",)
    #: Its configuration, for the report.
    note = ""
    #: The daemon's setting `frontend`; "": the default, or not our daemon.
    frontend = ""
    #: How much it records: "off" no counters in workers, "all" access log and scrapes, too; "": as usual.
    recording = ""
    #: Whether it batches the identities, if that is optional.
    batching = False
    #: Whether it can serve a folder with a model.py.
    model_folders = False
    #: The group of workloads that it serves, and nothing else: "typed" or "models"; "": the groups with tensors.
    only = ""
    #: The system whose server it uses if both are measured, so that they differ only in their requests; "": none.
    shares = ""
    #: Whether it uses CPU while idle. It then only runs while it is measured.
    restless = False

    def python(self) -> Path:
        """Return the interpreter for the server. Create its environment if necessary.

        Raises:
            NotInstalled: the packages could not be installed.
        """
        name = re.split(r"[\[=<>]", self.requirements[0])[0]
        return environments.ensure(name, self.requirements)

    def versions(self) -> dict[str, str]:
        """Return the versions of the measured packages."""
        return environments.versions(self.python(), self.distributions)

    def environment(self) -> dict[str, str]:
        """Return additional environment variables for the server."""
        return {}

    def serves(self, workload: Workload) -> bool:
        """Return True if the system is for workloads of this kind: typed functions, real models, or tensors."""
        return self.only == (workload.group if workload.group in ("typed", "models") else "")

    def refuses(self, workload: Workload) -> str | None:
        """Return why the system cannot serve a workload; None if it can."""
        return None

    @abstractmethod
    def request(self, workload: Workload, protocol: str, ports: Ports) -> Request:
        """Return the request that clients send."""
