"""A tiny language model: it continues a text with words that followed in its training text."""

import asyncio
import random

import pytriton
from pytriton.openai import ChatRequest, Delta, Usage

TEXT = """
A worker runs one instance of a model. A worker loads the callable and runs its batches. A proxy hands batches
to a worker and answers clients. A lane is the connection between one proxy and one worker. A client asks a model
by its name. A model answers a request and the proxy hands the answer to the client.
"""


class Continuing:
    """The language model. Each worker creates one, and could load weights here."""

    def __init__(self):
        self.followers = {}
        words = TEXT.split()
        for word, follower in zip(words, words[1:]):
            self.followers.setdefault(word, []).append(follower)

    async def __call__(self, request: ChatRequest):
        """Yield the answer word by word. When the client disconnects, the daemon closes this generator."""
        word = request.messages[-1].text.split()[-1]
        choice = random.Random(request.body.get("seed", 0))
        most, count = request.max_tokens or 20, 0
        while word in self.followers and count < most:
            word = choice.choice(self.followers[word])
            count += 1
            yield word + " "
            await asyncio.sleep(0.01)  # a real engine computes here, while other requests run
        asked = len(request.messages[-1].text.split())
        yield Delta(
            finish_reason="length" if count == most else "stop",
            usage=Usage(prompt_tokens=asked, completion_tokens=count),
        )


if __name__ == "__main__":
    pytriton.connect().register(Continuing, "tiny", openai="chat", replace=True)
