"""A llama.cpp model, whose chunks already have OpenAI's format.

pip install llama-cpp-python
MODEL=/path/to/model.gguf python examples/openai/llama_cpp_chat.py
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any

from pytriton.daemon import connect
from pytriton.openai import ChatRequest, ModelCard

CONTEXT = 4096
#: Fields of a request that llama.cpp has, too.
FIELDS = (
    "temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "logit_bias", "response_format",
    "tools", "tool_choice",
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
        yield from self._model.create_chat_completion(
            messages=[dict(one.raw) for one in request.messages],
            stream=True,
            stop=list(request.stop),
            max_tokens=request.max_tokens,
            **options,
        )


if __name__ == "__main__":
    card = ModelCard("chat", context_length=CONTEXT)
    factory = functools.partial(Chat, os.environ["MODEL"])
    connect().register(factory, "llama", openai=card, factory=True, replace=True)
