"""A llama.cpp model, whose chunks already have OpenAI's format.

    pip install llama-cpp-python
    MODEL=/path/to/model.gguf python examples/openai/llama_cpp_chat.py

A worker answers one request at a time, like llama-cpp-python's own server. Set INSTANCES to answer several.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any

from pytriton.daemon import connect
from pytriton.openai import APIError, ChatRequest, Delta, ModelCard, Usage

CONTEXT = 4096
#: Fields of a request that llama.cpp has, too.
FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "response_format",
    "tools", "tool_choice", "logprobs", "top_logprobs",
)  # fmt: skip


class Chat:
    """The callable. Each worker creates one."""

    def __init__(self, path: str) -> None:
        from llama_cpp import Llama

        self._model: Any = Llama(model_path=path, n_ctx=CONTEXT, n_gpu_layers=-1, verbose=False)

    def __call__(self, request: ChatRequest) -> Iterator[Any]:
        """Answer a chat. If the client disconnects, the generator is closed, which stops the generation."""
        options = {
            name: request.body[name] for name in FIELDS if request.body.get(name) is not None
        }
        # Streams of llama-cpp-python have no usage. At the first chunk, the context holds just the prompt.
        prompt: int | None = None
        count = 0
        try:
            for chunk in self._model.create_chat_completion(
                messages=[dict(one.raw) for one in request.messages],
                stream=True,
                stop=list(request.stop),
                max_tokens=request.max_tokens,
                **options,
            ):
                prompt = self._model.n_tokens if prompt is None else prompt
                count += bool(chunk["choices"][0]["delta"].get("content"))
                yield chunk
        except ValueError as error:  # for example, the prompt is longer than the context
            raise APIError(str(error)) from error
        yield Delta(usage=Usage(prompt_tokens=prompt or 0, completion_tokens=count))


if __name__ == "__main__":
    card = ModelCard("chat", context_length=CONTEXT)
    factory = functools.partial(Chat, os.environ["MODEL"])
    connect().register(
        factory, "llama", openai=card, factory=True, replace=True,
        instances=int(os.environ.get("INSTANCES", "1")),
    )  # fmt: skip
