"""A transformers model with continuous batching: new requests join the batch at any step.

    pip install "transformers>=5.20" torch
    python examples/openai/transformers_chat.py

By default the model is a Llama with random weights, created with its tokenizer at the start. Set `MODEL=/path/or/name`
to serve another one, with its own tokenizer and chat template. transformers ignores the fields `seed` and `stop` here.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import uuid
from collections.abc import AsyncIterator
from typing import Any

from pytriton.daemon import connect
from pytriton.openai import APIError, ChatRequest, Delta, Usage

#: Memory for keys and values on a CPU, in blocks of 256 tokens. Without a limit, transformers takes most of the memory.
CPU_BLOCKS = 64
MAX_TOKENS = 512
#: transformers divides by the temperature. With this one, the most likely token always wins.
GREEDY = 1e-4
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tiny() -> tuple[Any, Any]:
    """Return a model with random weights, and a tokenizer that was trained on this file."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train(
        [__file__],
        trainers.BpeTrainer(vocab_size=600, special_tokens=["<end>"], initial_alphabet=alphabet),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<end>", pad_token="<end>")
    tokenizer.chat_template = TEMPLATE
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=4096, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    return LlamaForCausalLM(config), tokenizer


def load(name: str) -> tuple[Any, Any]:
    """Return a model and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not name:
        return tiny()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(name, dtype="auto")
    return model.to(device), AutoTokenizer.from_pretrained(name)


class Chat:
    """The callable. Each worker creates one."""

    def __init__(self, name: str) -> None:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        self._model, self._tokenizer = load(name)
        # Requests can only set what differs from transformers' defaults here.
        sampling = GenerationConfig(
            do_sample=True, temperature=0.9, top_p=0.9, max_new_tokens=MAX_TOKENS,
            eos_token_id=self._model.generation_config.eos_token_id, pad_token_id=self._tokenizer.pad_token_id,
        )  # fmt: skip
        blocks = CPU_BLOCKS if self._model.device.type == "cpu" else None
        batching = ContinuousBatchingConfig(per_request_processors=True, num_blocks=blocks)
        self._engine = self._model.init_continuous_batching(sampling, batching)
        self._engine.start()
        self._requests: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Queue[Any]]] = {}
        threading.Thread(target=self._distribute, daemon=True).start()

    def _distribute(self) -> None:
        """Put each output of the engine into the queue of its request."""
        for output in self._engine:  # until the engine fails
            self._put(output.request_id, output)
        for name in list(self._requests):
            self._put(name, None)

    def _put(self, name: str, output: Any) -> None:
        waiting = self._requests.get(name)
        if waiting is not None:  # otherwise the client has disconnected
            loop, outputs = waiting
            loop.call_soon_threadsafe(outputs.put_nowait, output)

    async def __call__(self, request: ChatRequest) -> AsyncIterator[Any]:
        """Answer a chat."""
        from tokenizers.decoders import DecodeStream

        chat = [{"role": one.role, "content": one.text} for one in request.messages]
        try:
            prompt = self._tokenizer.apply_chat_template(
                chat, add_generation_prompt=True, return_dict=False
            )
        except Exception as error:  # templates refuse, for example, two questions in a row
            raise APIError(f"The chat template refuses these messages: {error}") from error
        most = request.max_tokens or MAX_TOKENS
        temperature = 0.9 if request.temperature is None else float(request.temperature)
        outputs: asyncio.Queue[Any] = asyncio.Queue()
        name = uuid.uuid4().hex
        self._requests[name] = (asyncio.get_running_loop(), outputs)
        try:
            accepted = self._engine.add_request(
                prompt, name, max_new_tokens=most, streaming=True,
                temperature=max(temperature, GREEDY), top_p=float(request.top_p or 1),
            )  # fmt: skip
            if accepted is None:
                outputs.put_nowait(None)
            decoder = DecodeStream(skip_special_tokens=True)
            tokens: list[int] = []
            finished = False
            while not finished:
                output = await outputs.get()
                if output is None:  # end this worker; the daemon starts another one
                    raise SystemExit("transformers' engine has failed")
                if output.error is not None:
                    raise RuntimeError(output.error)
                for token in output.generated_tokens[len(tokens) :]:
                    piece = decoder.step(self._tokenizer.backend_tokenizer, token)
                    if piece:
                        yield piece
                tokens, finished = output.generated_tokens, output.is_finished()
            yield Delta(
                finish_reason="length" if len(tokens) >= most else "stop",
                usage=Usage(prompt_tokens=len(prompt), completion_tokens=len(tokens)),
            )
        finally:  # the client may have disconnected
            self._engine.cancel_request(name)
            del self._requests[name]


if __name__ == "__main__":
    factory = functools.partial(Chat, os.environ.get("MODEL", ""))
    connect().register(
        factory, "transformers", openai=["chat", "responses"], factory=True, replace=True
    )
