"""Serves the OpenAI API with LitServe's specifications for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import litserve as ls
import work

NAME = work.spec()["model"]["name"]


class Chat(ls.LitAPI):  # type: ignore[misc]
    """Tokens, many streams at once."""

    def setup(self, device: str) -> None:
        """Do nothing."""

    async def predict(self, prompt: Any) -> AsyncIterator[str]:
        """Yield the tokens."""
        async for token in work.openai_tokens(NAME):
            yield token


class Embed(ls.LitAPI):  # type: ignore[misc]
    """Embeddings in batches."""

    def setup(self, device: str) -> None:
        """Do nothing."""

    def batch(self, inputs: Any) -> Any:
        """Return the texts of several requests."""
        return list(inputs)

    def predict(self, inputs: Any) -> Any:
        """Embed the texts."""
        return work.embed(inputs)

    def unbatch(self, output: Any) -> Any:
        """Return what each request gets."""
        return [row[None] for row in output]

    def encode_response(self, output: Any) -> Any:
        """Return a row as the specification wants it."""
        return {"embeddings": output}


def main() -> None:
    """Serve until the process is ended."""
    spec = work.spec()
    if NAME == "embed":
        api: Any = Embed(max_batch_size=64, batch_timeout=0.005, spec=ls.OpenAIEmbeddingSpec())
    else:
        api = Chat(enable_async=True, stream=True, spec=ls.OpenAISpec())
    server = ls.LitServer(api, accelerator="cpu", workers_per_device=1, fast_queue=True, timeout=60)
    server.run(
        host="127.0.0.1", port=spec["openai_port"], generate_client_file=False, log_level="warning"
    )


if __name__ == "__main__":
    main()
