"""The engines of examples/openai with the real daemon, each with a tiny random model, if the engine is installed."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import inspect
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from support.models.tiny_llms import CONTEXT, ENGINES, EXAMPLES, Engine
from support.real_daemon import RunningDaemon, eventually

#: Importing an engine takes ten seconds, and a minute on a busy machine.
START_S = 300.0
#: More than a test waits for.
LONG = 3500
#: Without compilation, which takes minutes, and with 256 MiB for keys and values.
VLLM_ARGS = {"enforce_eager": True, "kv_cache_memory_bytes": 1 << 28}
TOKENS = 16


Progress = Callable[[Any], tuple[int, int]]


def _of_llama(chat: Any) -> tuple[int, int]:
    return 0, chat._model.n_tokens  # a worker begins a request when the previous one has ended


def _of_transformers(chat: Any) -> tuple[int, int]:
    scheduler = chat._engine.batch_processor.scheduler
    in_flight = len(scheduler.active_requests) + len(scheduler.waiting_requests)
    return in_flight, chat._engine.current_batch


def _of_vllm(chat: Any) -> tuple[int, int]:
    from prometheus_client import REGISTRY

    samples = [sample for metric in REGISTRY.collect() for sample in metric.samples]
    steps = sum(one.value for one in samples if one.name == "vllm:generation_tokens_total")
    return chat._engine.output_processor.get_num_unfinished_requests(), int(steps)


#: Model of an engine -> returns how many requests the engine of its `Chat` is processing, and how many tokens it has made
#: for one.
_PROGRESS: dict[str, Progress] = {
    "llama": _of_llama,
    "transformers": _of_transformers,
    "vllm": _of_vllm,
}


def make_counting(script: str, model: str, options: list[Any], progress: Progress) -> Any:
    """Return the callable of an example, which also answers what its engine has done."""
    spec = importlib.util.spec_from_file_location("example", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    chat = module.Chat(model, *options)

    async def counting(request: Any) -> AsyncIterator[Any]:
        if request.messages[-1].text == "progress":
            yield json.dumps(progress(chat))
            return
        async for piece in chat(request):
            yield piece

    def counting_one(request: Any) -> Iterator[Any]:
        if request.messages[-1].text == "progress":
            yield json.dumps(progress(chat))
            return
        yield from chat(request)

    return counting if inspect.isasyncgenfunction(module.Chat.__call__) else counting_one


@dataclass
class Served:
    """An engine behind the OpenAI API of a daemon."""

    daemon: RunningDaemon
    engine: Engine
    path: Path

    def register(self) -> None:
        """Run the example, as its user does."""
        env = {
            **os.environ,
            "MODEL": str(self.path),
            "ENGINE_ARGS": json.dumps(VLLM_ARGS),
            "PYTRITON_DAEMON_RUNTIME_DIR": self.daemon.config.runtime_dir,
        }
        script = EXAMPLES / f"{self.engine.script}.py"
        done = subprocess.run(
            [sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=START_S
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def worker(self) -> int:
        pid = self.daemon.client.model(self.engine.model).instances[0].pid
        assert pid is not None
        return pid

    def options(self, text: str = "hello you", tokens: int = TOKENS) -> dict[str, Any]:
        return {
            "model": self.engine.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": tokens,
            "temperature": 0,
        }

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=self.daemon.client.status().openai_url,
            api_key="none",
            max_retries=0,
            timeout=START_S,
        )

    async def stream(self, count: int) -> list[tuple[str, str, int]]:
        """Return the text, the reason of the end, and the number of tokens of each of several streams at once."""
        url = self.daemon.client.status().openai_url

        async def one(client: openai.AsyncOpenAI) -> tuple[str, str, int]:
            text, reason, tokens = "", "", 0
            chunks: Any = await client.chat.completions.create(
                **self.options(), stream=True, stream_options={"include_usage": True}
            )
            async for chunk in chunks:
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    reason = choice.finish_reason or reason
                if chunk.usage:
                    assert chunk.usage.prompt_tokens > 1
                    tokens = chunk.usage.completion_tokens
            return text, reason, tokens

        async with openai.AsyncOpenAI(
            base_url=url, api_key="none", max_retries=0, timeout=START_S
        ) as client:
            return list(await asyncio.gather(*(one(client) for _ in range(count))))


@pytest.fixture(scope="module", params=ENGINES, ids=lambda engine: engine.model)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    engine: Engine = request.param
    pytest.importorskip(engine.package)
    path = tmp_path_factory.mktemp("engines") / engine.model
    engine.write(path)
    with RunningDaemon.start() as daemon:
        served = Served(daemon, engine, path)
        served.register()
        yield served


@pytest.mark.timeout(START_S)
@pytest.mark.parametrize("count", [1, 8, 32])
def test_streams_end_with_all_their_tokens(served: Served, count: int) -> None:
    answers = asyncio.run(served.stream(count))
    assert [(reason, tokens) for _, reason, tokens in answers] == [("length", TOKENS)] * count
    assert answers[0][0].strip()


@pytest.mark.timeout(START_S)
def test_the_answer_is_the_same_without_streaming(served: Served) -> None:
    ((text, _, _),) = asyncio.run(served.stream(1))
    whole = served.client().chat.completions.create(**served.options())
    assert whole.choices[0].message.content == text


@pytest.mark.timeout(START_S)
def test_without_max_tokens_an_answer_is_longer_than_an_engines_default(served: Served) -> None:
    options = served.options()
    del options["max_tokens"]
    with served.client().chat.completions.create(**options, stream=True) as chunks:
        contents = (chunk.choices[0].delta.content for chunk in chunks if chunk.choices)
        tokens = list(itertools.islice(filter(None, contents), 2 * TOKENS))
    assert len(tokens) == 2 * TOKENS


@pytest.mark.timeout(START_S)
def test_a_prompt_longer_than_the_context_is_refused(served: Served) -> None:
    if served.engine.model == "transformers":
        pytest.skip("transformers takes prompts of any length")
    with pytest.raises(openai.BadRequestError, match="context"):
        served.client().chat.completions.create(**served.options("w1 " * 2 * CONTEXT))


@pytest.mark.timeout(2 * START_S)
def test_a_disconnected_client_stops_the_engine(served: Served) -> None:
    factory = functools.partial(
        make_counting,
        str(EXAMPLES / f"{served.engine.script}.py"),
        str(served.path),
        [VLLM_ARGS] if served.engine.model == "vllm" else [],
        _PROGRESS[served.engine.model],
    )
    served.daemon.client.register(factory, "counting", openai="chat", factory=True, progress=False)

    def progress() -> tuple[int, int]:
        options = {**served.options("progress"), "model": "counting"}
        answer = client.chat.completions.create(**options).choices[0].message.content
        in_flight, tokens = json.loads(answer or "")
        return in_flight, tokens

    try:
        client = served.client()
        options = {**served.options(tokens=LONG), "model": "counting"}
        stream = client.chat.completions.create(**options, stream=True)
        next(iter(stream))
        stream.close()
        eventually(lambda: progress()[0] == 0, "the engine goes on", START_S)
        assert 0 < progress()[1] < LONG
    finally:
        served.daemon.client.unregister("counting")


@pytest.mark.timeout(2 * START_S)
def test_a_killed_worker_ends_its_streams_with_an_error(served: Served) -> None:
    client = served.client()
    worker = psutil.Process(served.worker())
    family = [worker, *worker.children(recursive=True)]
    stream = client.chat.completions.create(**served.options(tokens=LONG), stream=True)
    chunks = iter(stream)
    next(chunks)
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(openai.APIError, match="worker"):
        for _ in chunks:
            pass
    ((_, reason, _),) = asyncio.run(served.stream(1))
    assert reason == "length"
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive


@pytest.mark.timeout(2 * START_S)
def test_no_request_fails_while_the_model_is_replaced(served: Served) -> None:
    replaced = threading.Event()
    answers: list[tuple[str, str, int]] = []

    async def load() -> None:
        while not replaced.is_set():
            answers.extend(await served.stream(4))

    def replace() -> None:
        try:
            served.register()
        finally:
            replaced.set()

    before = served.worker()
    thread = threading.Thread(target=replace)
    thread.start()
    asyncio.run(load())
    thread.join()
    assert served.worker() != before
    assert len(answers) >= 4
    assert {(reason, tokens) for _, reason, tokens in answers} == {("length", TOKENS)}
