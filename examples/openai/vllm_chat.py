"""vLLM's engine in a worker. The engine batches the requests of all clients.

pip install vllm
MODEL=Qwen/Qwen2.5-0.5B-Instruct python examples/openai/vllm_chat.py
"""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator
from typing import Any

from pytriton.daemon import connect
from pytriton.openai import ChatRequest, Delta, Usage


class Chat:
    """The callable. Each worker creates one."""

    def __init__(self, name: str) -> None:
        from vllm import AsyncEngineArgs, AsyncLLMEngine

        self._engine: Any = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=name))
        self._tokenizer: Any = None

    async def __call__(self, request: ChatRequest) -> AsyncIterator[Any]:
        """Answer a chat."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        if self._tokenizer is None:
            self._tokenizer = await self._engine.get_tokenizer()
        chat = [{"role": one.role, "content": one.text} for one in request.messages]
        prompt = self._tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=True
        )
        options = {
            "temperature": request.temperature, "top_p": request.top_p, "seed": request.seed,
            "presence_penalty": request.presence_penalty, "frequency_penalty": request.frequency_penalty,
            "max_tokens": request.max_tokens, "stop": list(request.stop) or None,
        }  # fmt: skip
        given = {name: value for name, value in options.items() if value is not None}
        sampling = SamplingParams(**given, n=request.n, output_kind=RequestOutputKind.DELTA)
        asked = count = 0
        # If the client disconnects, this generator and vLLM's are closed, which aborts the request.
        async for step in self._engine.generate(prompt, sampling, request.id):
            asked = len(step.prompt_token_ids or ())
            for one in step.outputs:
                count += len(one.token_ids)
                yield Delta(content=one.text, index=one.index, finish_reason=one.finish_reason)
        yield Delta(usage=Usage(prompt_tokens=asked, completion_tokens=count))


if __name__ == "__main__":
    factory = functools.partial(Chat, os.environ["MODEL"])
    connect().register(factory, "vllm", openai=["chat", "responses"], factory=True, replace=True)
