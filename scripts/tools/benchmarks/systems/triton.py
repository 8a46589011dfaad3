"""Systems that run Triton: ours, nvidia-pytriton, and the python backend alone."""

from __future__ import annotations

import importlib.metadata
import sys
import sysconfig
from pathlib import Path

from benchmarks import environments
from benchmarks.load import wire
from benchmarks.load.wire import Request
from benchmarks.systems.base import Ports, System
from benchmarks.workloads import Workload

_BATCHING = "identity: dynamic batching of up to 64"


class _Triton(System):
    protocols: tuple[str, ...] = ("http", "grpc")

    def request(self, workload: Workload, protocol: str, ports: Ports) -> Request:
        if protocol == "grpc":
            return wire.triton_grpc(workload, ports.grpc_base)
        return wire.triton_http(workload, ports.http_base)


class Ours(_Triton):
    """The daemon of this checkout. A client registers the callable."""

    name = "ours"
    title = "pytriton-daemon"
    script = "ours.py"
    model_folders = True
    note = f"{_BATCHING}, `@batch`"

    def python(self) -> Path:
        return Path(sys.executable)

    def versions(self) -> dict[str, str]:
        return {"pytriton-daemon": importlib.metadata.version("pytriton-daemon")}


class OursTriton(Ours):
    """The same with NVIDIA's frontend."""

    name = "ours-triton"
    title = "pytriton-daemon, NVIDIA's frontend"
    note = f'{Ours.note}; frontend = "triton"'
    frontend = "triton"


class OursNative(Ours):
    """The same with the native frontend, whatever the default is."""

    name = "ours-native"
    title = "pytriton-daemon, native frontend"
    note = f'{Ours.note}; frontend = "native"'
    frontend = "native"


class OursUncounted(Ours):
    """The same without counters and histograms in workers, to measure what they cost."""

    name = "ours-uncounted"
    title = "pytriton-daemon, no counters"
    note = f"{Ours.note}; for comparison only: no setting does this"
    recording = "off"


class OursObserved(Ours):
    """The same with everything recorded."""

    name = "ours-observed"
    title = "pytriton-daemon, all recording"
    note = f"{Ours.note}; access log on, /metrics scraped each second"
    recording = "all"


class Stub(_Triton):
    """Triton's python backend with the same binaries as ours. The callable runs inside its stub."""

    name = "stub"
    title = "python backend"
    script = "stub.py"
    model_folders = True
    note = f"{_BATCHING}; the code runs inside Triton's stub, not isolated"

    def python(self) -> Path:
        return Path(sys.executable)

    def versions(self) -> dict[str, str]:
        from pytriton._host.install.wheel import PINNED

        return {"tritonserver": PINNED.triton_version}


class NvidiaPytriton(_Triton):
    """NVIDIA's PyTriton, used as documented."""

    name = "nvidia-pytriton"
    title = "nvidia-pytriton"
    script = "nvidia_pytriton.py"
    requirements = ("nvidia-pytriton==0.7.0",)
    distributions = ("nvidia-pytriton", "numpy")
    note = f"{_BATCHING}, `@batch`; instances are several callables"

    def environment(self) -> dict[str, str]:
        """Put the interpreter's own libpython first: another release, found in the system, breaks the stub."""
        name = sysconfig.get_config_var("INSTSONAME")
        library = Path(sysconfig.get_config_var("LIBDIR") or "/", str(name))
        if not library.exists():
            return {}
        folder = (
            environments.cache_folder() / f"libpython-{sys.version_info[0]}.{sys.version_info[1]}"
        )
        folder.mkdir(parents=True, exist_ok=True)
        link = folder / library.name
        if not link.exists() or link.resolve() != library.resolve():
            link.unlink(missing_ok=True)
            link.symlink_to(library)
        return {"LD_LIBRARY_PATH": str(folder)}
