"""The OpenAI API with the real daemon: the official client, raw requests, and crashes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from pydantic import BaseModel
from support.forks.prefork import command
from support.real_daemon import FRONT, RunningDaemon, eventually

from pytriton.dispatcher.openai.keys import KeyFile

KEY = "sk-a-key-of-the-tests"
KEYS = f"""
[[key]]
name = "tests"
key = "{KEY}"

[[key]]
name = "poor"
key = "sk-another-key-of-them"
requests_per_minute = 1
"""


async def talk(request: Any) -> AsyncIterator[Any]:
    import asyncio
    import os

    from pytriton.openai import Delta, ToolCall

    said = request.messages[-1].text
    if said == "endless":
        while True:
            yield "more "
            await asyncio.sleep(0.01)
    elif said == "tool":
        yield Delta(tool_calls=(ToolCall(name="look", arguments='{"at": 1}'),))
    elif said == "json":
        assert request.response_format["type"] == "json_schema"
        yield '{"a": '
        yield "1}"
    elif said == "fail":
        yield "a"
        raise RuntimeError("it is broken")
    elif said == "die":
        yield "a"
        os._exit(3)
    else:
        for piece in ("Hello", " ", said):
            yield piece


def embed(texts: list[Any]) -> Any:
    import numpy as np

    return np.array([[len(text), 1.0] for text in texts], np.float32)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    keys = tmp_path_factory.mktemp("openai") / "keys.toml"
    keys.write_text(KEYS)
    with RunningDaemon.start(
        openai_keys_file=str(keys), management_address="127.0.0.1:0"
    ) as daemon:
        register = daemon.client.register
        kinds = ["chat", "completions", "responses"]
        register(talk, "talk", openai=kinds, progress=False)
        register(embed, "embed", openai="embeddings", progress=False)
        yield daemon


@pytest.fixture(scope="module")
def url(daemon: RunningDaemon) -> str:
    return daemon.client.status().openai_url


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=60) as client:
        yield client


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


def test_the_official_client(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["talk", "embed"]
    assert client.models.retrieve("talk").owned_by == "pytriton"
    chat = client.chat.completions
    whole = chat.create(model="talk", messages=user("you"))
    assert whole.choices[0].message.content == "Hello you"
    usage: Any = {"include_usage": True}
    chunks = list(
        chat.create(model="talk", messages=user("you"), stream=True, stream_options=usage)
    )
    said = [one.choices[0].delta.content for one in chunks if one.choices]
    assert said == ["Hello", " ", "you", None]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3
    calls: Any = chat.create(model="talk", messages=user("tool")).choices[0].message.tool_calls
    assert (calls[0].function.name, calls[0].function.arguments) == ("look", '{"at": 1}')


def test_structured_output(client: openai.OpenAI) -> None:
    class Answer(BaseModel):
        a: int

    parsed = client.chat.completions.parse(
        model="talk", messages=user("json"), response_format=Answer
    )
    assert parsed.choices[0].message.parsed == Answer(a=1)


def test_responses(client: openai.OpenAI) -> None:
    assert client.responses.create(model="talk", input="you").output_text == "Hello you"
    with client.responses.stream(model="talk", input="you") as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text == "Hello you"
    assert kinds.count("response.output_text.delta") == 3


def test_embeddings(client: openai.OpenAI) -> None:
    texts = ["x" * length for length in range(1, 101)]  # more than fit into a batch
    found = client.embeddings.create(model="embed", input=texts).data
    assert [one.embedding for one in found] == [[float(length), 1.0] for length in range(1, 101)]
    ids = client.embeddings.create(model="embed", input=[7, 8, 9], encoding_format="float")
    assert ids.data[0].embedding == [3.0, 1.0]


def test_embeddings_requested_through_litellm(url: str) -> None:
    import urllib.error

    def ask(**tensor: Any) -> Any:
        said = {"name": "input_text", "shape": [2], "datatype": "BYTES", **tensor}
        asked = urllib.request.Request(
            f"{url.removesuffix('/v1')}/v2/models/embed/infer",
            json.dumps({"inputs": [said]}).encode(),
            {"Authorization": f"Bearer {KEY}"},
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.load(answer)["outputs"]

    (found,) = ask(data=["a", "bb"])
    assert (found["shape"], found["data"]) == ([2, 2], [1.0, 1.0, 2.0, 1.0])
    wrongs: list[dict[str, Any]] = [{"data": []}, {"data": [1]}, {"data": ["a"], "name": "other"}]
    for wrong in wrongs:
        with pytest.raises(urllib.error.HTTPError, match="400") as refused:
            ask(**wrong)
        assert json.load(refused.value)["error"]["param"].startswith("inputs[0]")
        refused.value.close()


def test_many_streams_at_once_with_the_asynchronous_client(url: str) -> None:
    async def ask(client: openai.AsyncOpenAI, number: int) -> str:
        stream = await client.chat.completions.create(
            model="talk", messages=user(str(number)), stream=True
        )
        return "".join([one.choices[0].delta.content or "" async for one in stream])

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(32)))

    assert asyncio.run(all_of_them()) == [f"Hello {number}" for number in range(32)]


def test_unauthorized_clients_are_refused(
    url: str, daemon: RunningDaemon, client: openai.OpenAI
) -> None:
    with pytest.raises(openai.AuthenticationError) as wrong:
        client.with_options(api_key="sk-wrong-and-secret-key").models.list()
    assert wrong.value.code == "invalid_api_key"
    poor = client.with_options(api_key="sk-another-key-of-them")
    poor.chat.completions.create(model="talk", messages=user("you"))
    with pytest.raises(openai.RateLimitError) as limited:
        poor.chat.completions.create(model="talk", messages=user("you"))
    assert int(limited.value.response.headers["retry-after"]) >= 1
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="nobody", messages=user("you"))
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="talk", input="x")
    logged = daemon.said() + "".join(
        path.read_text() for path in Path(daemon.config.runtime_dir, "logs").glob("*.log*")
    )
    for key in (KEY, "sk-another-key-of-them", "sk-wrong-and-secret-key"):
        assert key not in logged


@pytest.mark.parametrize(
    ("said", "reported"), [("fail", "it is broken"), ("die", "exited with code 3")]
)
def test_a_failure_within_a_stream_is_reported_and_ends_it(
    client: openai.OpenAI, said: str, reported: str
) -> None:
    stream = client.chat.completions.create(model="talk", messages=user(said), stream=True)
    chunks = iter(stream)
    assert next(chunks).choices[0].delta.content == "a"
    with pytest.raises(openai.APIError, match=reported):
        next(chunks)
    eventually(
        lambda: client.chat.completions.create(model="talk", messages=user("x")).choices,
        "another worker answers",
    )


def test_a_killed_frontend_is_restarted(client: openai.OpenAI, daemon: RunningDaemon) -> None:
    (frontend,) = [one for one, line in daemon.commands().items() if "dispatcher.openai" in line]
    os.kill(frontend.pid, signal.SIGKILL)
    psutil.wait_procs([frontend], timeout=60)
    # The daemon listens on: this waits until another process accepts it.
    assert client.with_options(max_retries=3).models.list().data


@pytest.mark.skipif(FRONT == "triton", reason="upgrades need the native frontend")
def test_the_frontend_survives_an_upgrade_of_the_daemon(
    client: openai.OpenAI, daemon: RunningDaemon
) -> None:
    """The same process continues its streams, and learns of new models from the next version."""
    (frontend,) = [one for one, line in daemon.commands().items() if "dispatcher.openai" in line]
    with client.chat.completions.create(
        model="talk", messages=user("endless"), stream=True
    ) as stream:
        assert next(iter(stream)).id
        daemon.client.upgrade()
        assert [next(iter(stream)).choices[0].delta.content for _ in range(50)]
    daemon.client.register(embed, "later", openai="embeddings", progress=False)
    eventually(
        lambda: "later" in [model.id for model in client.models.list()], "the frontend is told"
    )
    daemon.client.unregister("later")
    # What it has counted stands in the daemon's own metrics, also in those of the next version.
    address = daemon.client.status().management_urls[0]

    def metrics() -> str:
        with urllib.request.urlopen(f"{address}/metrics", timeout=60) as answer:
            return str(answer.read().decode())

    labels = 'gen_ai_operation_name="chat",gen_ai_request_model="talk"'
    counted = f"gen_ai_server_time_to_first_token_seconds_count{{{labels}}}"
    # The daemon leaves out what a busy frontend reports late.
    eventually(lambda: counted in metrics(), "the first token is counted")
    eventually(
        lambda: "pytriton_openai_active_requests 0" in metrics(), "the cancelled stream has ended"
    )
    assert client.chat.completions.create(model="talk", messages=user("you")).choices
    assert frontend.is_running()


def block(language: str, number: int = 0) -> str:
    """Return a code block of docs/how-to/openai.md."""
    text = (Path(__file__).parents[3] / "docs" / "how-to" / "openai.md").read_text()
    found = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return str(found[number])


def test_the_documented_example_works(daemon: RunningDaemon, url: str, tmp_path: Path) -> None:
    name = "talk_of_the_document"
    script = tmp_path / f"{name}.py"
    script.write_text(block("python").replace("register(talk,", f"register(talk, {name!r},"))
    env = {**os.environ, "PYTRITON_DAEMON_RUNTIME_DIR": daemon.config.runtime_dir}
    subprocess.run([sys.executable, str(script)], check=True, env=env, timeout=120)
    commands = [line[2:] for line in block("console").splitlines() if line.startswith("$ ")]
    assert [one.split()[0] for one in commands] == [
        "pytriton-daemon",
        "python",
        "pytriton-daemon",
        "curl",
    ]
    status = command(*commands[2].split("|")[0].split()[1:], env=env)
    assert status.returncode == 0, status.stderr
    (shown,) = [one for one in block("console").splitlines() if one.startswith("OpenAI API")]
    lines = [line.split() for line in status.stdout.splitlines()]
    assert shown.replace("http://127.0.0.1:8003/v1", url).split() in lines
    curl = commands[3].replace("localhost:8003/v1", url).replace('"talk"', f'"{name}"')
    said = subprocess.run(
        [*shlex.split(curl), "-sS", "-H", f"Authorization: Bearer {KEY}"],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert json.loads(said.stdout)["choices"][0]["message"]["content"] == "Hello you "
    daemon.client.unregister(name)


def test_the_documented_key_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(block("toml").replace("…", hashlib.sha256(b"sk-x").hexdigest(), 1))
    caller = KeyFile(path, print).authenticate("Bearer sk-x")
    assert caller is not None
    assert caller.entry.models == ("talk",)


def test_triton_clients_get_plain_text(daemon: RunningDaemon) -> None:
    import urllib.request

    body = json.dumps({"text_input": "you", "stream": False, "temperature": 0.5}).encode()
    asked = urllib.request.Request(f"http://{daemon.http}/v2/models/talk/generate", body)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        assert json.load(answer)["text_output"] == "Hello you"
