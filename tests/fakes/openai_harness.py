"""The OpenAI frontend with a fake tritonserver that answers from a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from pytriton._protocol.messages import OpenAICard
from pytriton.dispatcher.openai.server import ApiServer
from pytriton.dispatcher.openai.state import ApiModel, ApiSettings, ApiState, Upstream

HELLO = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
USAGE = '{"prompt_tokens":1,"completion_tokens":2}'
KEY = "sk-0123456789abcdef"
BEARER = {"Authorization": f"Bearer {KEY}"}
Script = list[Any]
Client = TestClient[Any, Any]


class OpenAIHarness:
    """A frontend, and a tritonserver whose script lists texts to send and events to wait for."""

    def __init__(self, script: Script, **answering: Any) -> None:
        self.script = script
        self.asked: list[Any] = []
        self.aliases: list[str] = []
        self.controlled: list[tuple[str, str]] = []  #: models that were loaded or unloaded
        self.given_up = 0
        self.said: list[str] = []
        self._answering = ApiSettings(**answering)

    def run(self, test: Callable[[Client], Awaitable[None]]) -> None:
        async def around() -> None:
            app = web.Application(client_max_size=1 << 30)
            app.router.add_post("/v2/models/{name}/generate_stream", self._generate)
            app.router.add_post("/v2/repository/models/{name}/{verb}", self._control)
            async with TestServer(app) as triton:
                card = OpenAICard(["chat", "responses"], aliases=self.aliases)
                models = [ApiModel("m", card, created=5)]
                state = ApiState(self._answering, Upstream(str(triton.make_url(""))), models)
                self.frontend = ApiServer(state, self.said.append)
                app = self.frontend.application()
                server = TestServer(app, handler_cancellation=True)
                async with TestClient(server) as client:
                    await test(client)

        asyncio.run(around())

    async def _control(self, request: web.Request) -> web.Response:
        if request.headers.get("triton-access-token") != "right":
            return web.json_response({"error": "This API is restricted"}, status=403)
        self.controlled.append((request.match_info["name"], request.match_info["verb"]))
        if request.match_info["name"] == "none":
            return web.json_response({"error": "failed to load 'none'"}, status=400)
        return web.Response()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(json.loads(json.loads(await request.read())["request"]))
        answer = web.StreamResponse()
        await answer.prepare(request)
        try:
            for step in self.script:
                if isinstance(step, asyncio.Event):
                    await step.wait()
                else:
                    said = step if isinstance(step, dict) else {"text_output": step}
                    await answer.write(f"data: {json.dumps(said)}\n\n".encode())
        except (asyncio.CancelledError, ConnectionError):
            self.given_up += 1
            raise
        return answer


def key_file(folder: Path, **limits: object) -> str:
    """Write a file with one key that has these limits; return its path."""
    path = folder / "keys.toml"
    lines = [f"{name} = {json.dumps(limit)}\n" for name, limit in limits.items()]
    path.write_text(f'[[key]]\nname = "a"\nkey = "{KEY}"\n{"".join(lines)}')
    return str(path)


async def post(client: Client, body: Any, path: str = "/v1/chat/completions", **more: Any) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with client.post(path, data=data, **more) as answer:
        return answer.status, answer.headers, await answer.text()
