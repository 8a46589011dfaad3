"""Three models: one cleans a text, one counts its words, one calls both and answers clients."""

import re

import numpy as np

import pytriton
from pytriton import ModelConfig, Tensor, batch
from pytriton.exceptions import CallError

TEXT = Tensor(name="text", dtype=bytes, shape=(1,))
CLEAN = Tensor(name="clean", dtype=bytes, shape=(1,))
COUNT = Tensor(name="count", dtype=np.int32, shape=(1,))


@batch
def clean(text):
    """Model 1: remove punctuation and convert to lower case."""
    texts = [re.sub(rb"[^a-z ]+", b"", one.lower()) for one in text[:, 0]]
    return {"clean": np.array(texts, dtype=object)[:, None]}


@batch
def count(clean):
    """Model 2: count different words."""
    return {"count": np.array([[len(set(one.split()))] for one in clean[:, 0]], np.int32)}


@batch
def words(text):
    """Model 3: call the others. Tensors stay in shared memory, without HTTP."""
    cleaned = pytriton.infer("clean", text=text)["clean"]
    if any(not one.strip() for one in cleaned[:, 0]):
        raise ValueError("a text has no words")
    try:
        counted = pytriton.infer("count", clean=cleaned, timeout_s=5.0)["count"]
    except CallError as error:
        raise RuntimeError(f"the model count failed: {error}") from error
    return {"clean": cleaned, "count": counted}


if __name__ == "__main__":
    client = pytriton.connect()
    config = ModelConfig(max_batch_size=32)
    client.register(clean, "clean", [TEXT], [CLEAN], config, replace=True)
    client.register(count, "count", [CLEAN], [COUNT], config, replace=True)
    client.register(words, "words", [TEXT], [CLEAN, COUNT], config, instances=2, replace=True)
