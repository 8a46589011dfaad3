"""Tiny language models with random weights, in the formats that engines load."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

EXAMPLES = Path(__file__).parents[3] / "examples" / "openai"
CONTEXT = 4096
_EMBEDDING, _HIDDEN, _HEADS, _BLOCKS = 128, 256, 4, 2
_WORDS = [f"\N{LOWER ONE EIGHTH BLOCK}w{number}" for number in range(400)]


def example(name: str) -> Any:
    """Import a file of examples/openai."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_gguf(path: Path) -> None:
    """Write a Llama of llama.cpp, with its tokenizer and chat template.

    Greedy decoding only ever chooses words: the logits of all other tokens are 0, so answers end at `max_tokens`.
    """
    import gguf

    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *_WORDS]
    kinds = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2]
    kinds += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * len(_WORDS)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(_EMBEDDING)
    writer.add_feed_forward_length(_HIDDEN)
    writer.add_block_count(_BLOCKS)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_EMBEDDING // _HEADS)
    writer.add_vocab_size(len(texts))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    writer.add_token_scores([0.0] * len(texts))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(
        "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    )
    random = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, (random.normal(size=shape) / shape[-1] ** 0.5).astype(np.float32))

    add("token_embd.weight", len(texts), _EMBEDDING)
    head = random.normal(size=(len(texts), _EMBEDDING)).astype(np.float32)
    head[: -len(_WORDS)] = 0
    writer.add_tensor("output.weight", head)
    writer.add_tensor("output_norm.weight", np.ones(_EMBEDDING, np.float32))
    for block in range(_BLOCKS):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{block}.{name}.weight", np.ones(_EMBEDDING, np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{block}.{name}.weight", _EMBEDDING, _EMBEDDING)
        add(f"blk.{block}.ffn_gate.weight", _HIDDEN, _EMBEDDING)
        add(f"blk.{block}.ffn_up.weight", _HIDDEN, _EMBEDDING)
        add(f"blk.{block}.ffn_down.weight", _EMBEDDING, _HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_transformers(path: Path) -> None:
    """Write the model of examples/openai/transformers_chat.py. Greedy decoding never ends its answers early."""
    import torch

    model, tokenizer = example("transformers_chat").tiny()
    with torch.no_grad():
        model.lm_head.weight[tokenizer.eos_token_id] = 0
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)


@dataclass(frozen=True)
class Engine:
    """An engine that an example of examples/openai registers.

    Attributes:
        package: the package to import
        script: the example's file
        model: the name that the example registers
        write: writes a model that the engine can load
    """

    package: str
    script: str
    model: str
    write: Callable[[Path], None]


ENGINES = [
    Engine("llama_cpp", "llama_cpp_chat", "llama", write_gguf),
    Engine("transformers", "transformers_chat", "transformers", write_transformers),
    Engine("vllm", "vllm_chat", "vllm", write_transformers),
]
