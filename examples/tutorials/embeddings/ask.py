"""Embed 200 texts with 200 concurrent requests, and find the text nearest to a question."""

import numpy as np
from serve import TEXTS

from pytriton.client import FuturesModelClient

QUESTION = "is my dog a good pet"


def tensor(text: str):
    return np.array([text.encode()], dtype=object)


with FuturesModelClient("grpc://127.0.0.1:8001", "embed") as client:
    futures = [client.infer_sample(tensor(text)) for text in TEXTS * 25]
    answers = [future.result() for future in futures]
    question = client.infer_sample(tensor(QUESTION)).result()["embedding"]

rows = np.array([answer["embedding"] for answer in answers[: len(TEXTS)]])
print("nearest:", TEXTS[int((rows @ question).argmax())])
print(
    "largest batch:",
    "more than one request" if max(answer["rows"] for answer in answers) > 1 else 1,
)
