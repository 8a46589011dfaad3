"""Runs the rows of the GPU check one after the other, prints a table and writes JSON. Needs only the standard library.

Each row is a process of its own with a time limit; when it ends or is killed, its daemon ends, too. So a row that hangs or
crashes is one line of the table. No step of this program may prevent the table: what goes wrong before the rows fails
the row `setup`, and all others are skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import site
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Optional

FOLDER = Path(__file__).resolve().parents[1]
#: Limit of all rows together.
TOTAL_S = 465.0
#: A row is skipped if less than this is left of `TOTAL_S`.
_MIN_S = 10.0
_FACTS_S = 120.0
_MAX_LOG = 6000


class Row(NamedTuple):
    """One row of the table.

    `needs` are names of facts; if one of them has an `error`, the row is skipped with that text.
    """

    name: str
    limit_s: float
    needs: tuple[str, ...]
    title: str


ROWS = (
    Row("server", 60, (), "server and frontend start"),
    Row("devices", 60, (), "devices= gives two workers that see only their device"),
    Row("register", 75, ("torch",), "torch model through register: batches, instances, same results as on the CPU"),
    Row("model_py", 75, ("torch",), "torch model through model.py: the same"),
    Row("suspend", 45, (), "a suspended model frees its memory, a request loads it again"),
    Row("metrics", 45, ("gpu", "nvml_pids"), "GPU memory of each worker in the metrics"),
    Row("out_of_memory", 60, ("gpu", "torch_gpu"), "out of memory on the GPU: clear error, worker recycled, neighbour untouched"),
    Row("kill", 45, ("gpu",), "kill -9 of a worker returns its GPU memory"),
    Row("budget", 60, ("gpu", "nvidia_smi"), "gpu_memory_budget with three models of which two fit"),
    Row("cuda_shm", 45, ("gpu",), "CUDA shared memory: register, infer, unregister, hostile handles"),
    Row("copy", 45, ("gpu", "torch_gpu"), "host-to-device copy from a lane's arena: registered and pageable"),
    Row("minilm", 100, ("torch",), "throughput of a MiniLM-sized model, and of FastAPI"),
    Row("resnet", 100, ("torch",), "throughput of a ResNet-50-sized model, and of FastAPI"),
    Row("mps", 75, ("gpu", "torch_gpu", "mps"), "two instances with and without MPS"),
)  # fmt: skip


class Outcome(NamedTuple):
    """The result of a row: "passed", "failed" or "skipped", and why."""

    row: str
    result: str
    detail: str
    took_s: float = 0.0
    numbers: Optional[dict[str, Any]] = None
    log: str = ""


class Report:
    """The table on standard output and the JSON file. Each outcome is reported at once, in case the machine is lost."""

    def __init__(self, file: Path | None) -> None:
        self.outcomes: list[Outcome] = []
        self.facts: dict[str, Any] = {}
        self._file = file
        self._began = time.time()

    def add(self, outcome: Outcome) -> None:
        """Print one line of the table, and write the JSON file again."""
        self.outcomes.append(outcome)
        detail = " ".join(outcome.detail.split())
        print(
            f"{outcome.row:<14} {outcome.result:<8} {outcome.took_s:6.1f} s  {detail[:400]}",
            flush=True,
        )
        self.write()

    def write(self) -> None:
        """Write all outcomes so far to the JSON file, if there is one."""
        if self._file is None:
            return
        rows = [
            {**outcome._asdict(), "title": _titles().get(outcome.row, "")}
            for outcome in self.outcomes
        ]
        content = {
            "began": self._began,
            "took_s": round(time.time() - self._began, 1),
            "facts": self.facts,
            "rows": rows,
        }
        draft = self._file.with_name(f"{self._file.name}.new")
        draft.write_text(json.dumps(content, indent=1))
        draft.replace(self._file)

    def summary(self) -> str:
        """Count the results, in the words of a test runner."""
        count = {result: 0 for result in ("passed", "failed", "skipped")}
        for outcome in self.outcomes:
            count[outcome.result] += 1
        return ", ".join(f"{number} {result}" for result, number in count.items())


def _titles() -> dict[str, str]:
    return {row.name: row.title for row in ROWS}


def lacking(row: Row, facts: Mapping[str, Any]) -> str | None:
    """Return why a row cannot run on this machine; None if it can."""
    for need in row.needs:
        error = facts.get(need, {"error": f"unknown whether there is {need}"}).get("error")
        if error:
            return str(error)
    return None


def unsuitable(about: Mapping[str, Any]) -> str | None:
    """Return why this machine or interpreter cannot run what the folder contains; None if it can."""
    version = "{}.{}".format(*sys.version_info[:2])
    if version != about["python"]:
        return (
            f"the folder is for Python {about['python']}, but {sys.executable} is {version}: set PYTHON to another "
            f"interpreter, or build the folder with --python {version}"
        )
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return (
            f"the folder is for Linux on x86_64, but this is {sys.platform} on {platform.machine()}"
        )
    name, _, libc = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    needed = ".".join(map(str, about["glibc"]))
    if name != "glibc" or tuple(map(int, libc.split(".")[:2])) < tuple(about["glibc"]):
        return f"Triton's core needs glibc {needed}, but this system has {name} {libc}"
    return None


def unpack(work: Path) -> None:
    """Unpack the archive, and check that programs may run where it lies.

    Raises:
        OSError, EOFError, tarfile.TarError: it cannot be unpacked there.
    """
    with tarfile.open(FOLDER / "bundle.tar.xz") as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(work, filter="data")
        else:
            tar.extractall(work)
    if os.statvfs(work).f_flag & os.ST_NOEXEC:
        raise OSError(
            f"{work} does not allow to run programs (noexec): set TMPDIR to a folder that does"
        )


def environment(work: Path) -> dict[str, str]:
    """Return the environment of all rows: the unpacked packages come first, and nothing is written outside `work`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTRITON_")}
    path = [str(work / "site"), str(FOLDER), *filter(None, [env.get("PYTHONPATH")])]
    # The folder of packages of this user depends on HOME, which changes; torch may be there.
    path += [entry for entry in sys.path if entry == site.getusersitepackages()]
    for name in ("home", "tmp"):
        (work / name).mkdir()
    return {
        **env,
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONDONTWRITEBYTECODE": "",  # each row starts several interpreters
        "PYTHONPYCACHEPREFIX": str(work / "pycache"),  # the folder may be read-only
        "HOME": str(work / "home"),
        "TMPDIR": str(work / "tmp"),
        "PYTRITON_DAEMON_TRITONSERVER": str(work / "server"),
        "PYTRITON_DAEMON_CACHE_DIR": str(work / "cache"),
        "GPU_CHECK_FACTS": str(work / "facts.json"),
    }  # fmt: skip


class Ended(NamedTuple):
    """How a process ended: its exit code, or None if it was killed at its limit."""

    code: int | None
    took_s: float
    log: str


def run_bounded(command: list[str], env: Mapping[str, str], log: Path, limit_s: float) -> Ended:
    """Run a process with a time limit, and kill its process group when it ends."""
    began = time.monotonic()
    with open(log, "wb") as file:
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            start_new_session=True, cwd=log.parent,
        )  # fmt: skip
        code: int | None
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _kill_group(process)
    text = log.read_text(errors="replace")
    return Ended(code, time.monotonic() - began, text[-_MAX_LOG:])


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # all of them have exited
        return
    process.wait()


def run_row(row: Row, env: Mapping[str, str], work: Path, limit_s: float) -> Outcome:
    """Run one row in a process of its own."""
    folder = work / "rows" / row.name
    folder.mkdir(parents=True)
    result = folder / "result.json"
    command = [sys.executable, "-m", "gpu_check.row", row.name, str(result)]
    ended = run_bounded(command, env, folder / "log", limit_s)
    took_s = round(ended.took_s, 1)
    if ended.code is None:
        return Outcome(
            row.name, "failed", f"not finished after {limit_s:.0f} s", took_s, None, ended.log
        )
    if not result.is_file():
        return Outcome(row.name, "failed", f"exited with {ended.code}", took_s, None, ended.log)
    said = json.loads(result.read_text())
    log = ended.log if said["result"] == "failed" else ""
    return Outcome(row.name, said["result"], said["detail"], took_s, said["numbers"], log)


def run_all(report: Report, work: Path, only: list[str]) -> None:
    """Unpack the folder, look at the machine, and run the rows."""
    began = time.monotonic()
    error, env = _prepare(report, work)
    report.add(
        Outcome(
            "setup",
            "failed" if error else "passed",
            error or _machine(report.facts),
            round(time.monotonic() - began, 1),
        )
    )
    for row in ROWS:
        if only and row.name not in only:
            continue
        left_s = began + TOTAL_S - time.monotonic()
        why = "the row setup failed" if error else lacking(row, report.facts)
        if why is None and left_s < _MIN_S:
            why = f"no time left: all rows together may take {TOTAL_S:.0f} s"
        if why is not None:
            report.add(Outcome(row.name, "skipped", why))
            continue
        report.add(run_row(row, env, work, min(row.limit_s, left_s)))


def _prepare(report: Report, work: Path) -> tuple[str | None, dict[str, str]]:
    """Unpack the folder and collect the facts; return what went wrong, and the environment of the rows."""
    try:
        error = unsuitable(json.loads((FOLDER / "bundle.json").read_text()))
        if error is not None:
            return error, {}
        unpack(work)
        env = environment(work)
    except (OSError, EOFError, ValueError, ImportError, tarfile.TarError) as error_:
        return f"{type(error_).__name__}: {error_}", {}
    file = Path(env["GPU_CHECK_FACTS"])
    ended = run_bounded(
        [sys.executable, "-m", "gpu_check.facts", str(file)], env, work / "facts.log", _FACTS_S
    )
    if file.is_file():
        report.facts = json.loads(file.read_text())
    if ended.code != 0:
        how = (
            f"did not finish within {_FACTS_S:.0f} s"
            if ended.code is None
            else f"exited with {ended.code}"
        )
        return f"looking at the machine {how}: {ended.log[-1500:]}", env
    if report.facts["torch_gpu"].get("error"):
        # Threads of OpenMP that wait for each other on busy cores spin: five times the CPU time for an image.
        env["OMP_NUM_THREADS"] = "1"
    return None, env


def _machine(facts: Mapping[str, Any]) -> str:
    """Describe the machine in one line."""
    gpu = facts["gpu"].get("error") or "{name}, driver {driver}".format(**facts["gpu"])
    torch = facts["torch"].get("error") or f"torch {facts['torch']['version']}"
    return f"Python {facts['python']}, {facts['cpus']} CPUs, {torch}; {gpu}"


def _stop(number: int, _frame: object) -> None:
    """Exit through the `finally` blocks."""
    sys.exit(128 + number)


def main(arguments: list[str] | None = None) -> int:
    """Run the check; return 1 if a row failed."""
    parser = argparse.ArgumentParser(
        prog="run.sh", description="Checks pytriton-daemon on this machine, with its GPU."
    )
    parser.add_argument("--json", type=Path, help="file to write all results to")
    parser.add_argument("--only", help="names of rows, separated by commas")
    given = parser.parse_args(arguments)
    only = given.only.split(",") if given.only else []
    unknown = sorted(set(only) - set(_titles()))
    if unknown:
        parser.error(f"no row is called {', '.join(unknown)}; there are {', '.join(_titles())}")
    signal.signal(signal.SIGTERM, _stop)
    report = Report(given.json)
    # Short: a unix socket's path has at most 107 bytes.
    work = Path(tempfile.mkdtemp(prefix="gpu-check-"))
    try:
        run_all(report, work, only)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    report.write()
    print(report.summary())
    return int(any(outcome.result == "failed" for outcome in report.outcomes))


if __name__ == "__main__":
    sys.exit(main())
