"""A transformers model: a Llama with 100,000 random weights and a tokenizer, both created at the start.

    pip install transformers tokenizers torch
    python examples/openai/transformers_chat.py

Set `MODEL=/path/or/name` to serve that model, with its own tokenizer and chat template.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator
from typing import Any

from pytriton.daemon import connect
from pytriton.openai import ChatRequest, Delta, Usage

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tiny() -> tuple[Any, Any]:
    """Return a model with random weights, and a tokenizer that was trained on this file."""
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
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval(), tokenizer


class Chat:
    """The callable. Each worker creates one."""

    def __init__(self, name: str) -> None:
        if name:
            from transformers import AutoModelForCausalLM, AutoTokenizer

            self._tokenizer: Any = AutoTokenizer.from_pretrained(name)
            self._model: Any = AutoModelForCausalLM.from_pretrained(name).eval()
        else:
            self._model, self._tokenizer = tiny()

    def __call__(self, request: ChatRequest) -> Iterator[Any]:
        """Answer a chat: transformers generates in a thread, and its streamer passes the texts on."""
        from transformers import StoppingCriteria, StoppingCriteriaList, TextIteratorStreamer

        gone = threading.Event()

        class Gone(StoppingCriteria):
            def __call__(self, ids: Any, scores: Any, **_: Any) -> Any:
                import torch

                return torch.full((len(ids),), gone.is_set(), device=ids.device)

        chat = [{"role": one.role, "content": one.text} for one in request.messages]
        asked = self._tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        streamer = TextIteratorStreamer(self._tokenizer, skip_prompt=True, skip_special_tokens=True)
        most = request.max_tokens or 64
        options: dict[str, Any] = {"max_new_tokens": most}
        if request.temperature:
            options.update(
                do_sample=True, temperature=request.temperature, top_p=request.top_p or 1.0
            )
        stopping = StoppingCriteriaList([Gone()])
        options.update(streamer=streamer, stopping_criteria=stopping)
        outcome: list[Any] = []

        def generate() -> None:
            try:
                outcome.append(self._model.generate(**asked, **options))
            except Exception as error:
                outcome.append(error)
                streamer.end()

        thread = threading.Thread(target=generate)
        thread.start()
        try:
            for piece in streamer:
                if piece:
                    yield piece
        finally:  # the client may have disconnected
            gone.set()
            thread.join()
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        before = asked["input_ids"].shape[1]
        made = outcome[0][0][before:]
        ended = len(made) > 0 and made[-1] == self._tokenizer.eos_token_id
        yield Delta(
            finish_reason="length" if len(made) >= most and not ended else "stop",
            usage=Usage(prompt_tokens=before, completion_tokens=len(made)),
        )


if __name__ == "__main__":
    factory = functools.partial(Chat, os.environ.get("MODEL", ""))
    connect().register(
        factory, "transformers", openai=["chat", "responses"], factory=True, replace=True
    )
