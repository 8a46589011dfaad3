"""Text that arrives word by word, as server-sent events.

$ pytriton-daemon serve text_stream.py
$ pytriton-daemon call write prompt="once upon a time" words=5
$ curl -N 127.0.0.1:8000/write -d '{"prompt": "once upon a time"}'
"""

import time
from collections.abc import Iterator


def write(prompt: str, words: int = 20) -> Iterator[str]:
    """Continue a text. A client that disconnects ends the generator."""
    known = prompt.split() or ["word"]
    for number in range(words):
        time.sleep(0.05)  # stands for a model
        yield known[number % len(known)]
