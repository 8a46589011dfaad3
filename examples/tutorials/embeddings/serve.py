"""Embed texts: a text becomes 4 numbers, and texts about the same thing become similar numbers."""

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

import pytriton
from pytriton import DynamicBatcher, ModelConfig, Tensor, batch

TEXTS = """cats and dogs are pets
a dog is a loyal pet
the cat sleeps all day
pets need food and care
rain falls from dark clouds
clouds bring rain and wind
the wind is cold in winter
winter weather is cold and dark""".splitlines()

encoder = make_pipeline(TfidfVectorizer(), TruncatedSVD(4, random_state=0), Normalizer()).fit(TEXTS)


@batch
def embed(text):
    """Embed a batch: texts (n, 1) as bytes to rows (n, 4)."""
    rows = encoder.transform([one.decode() for one in text[:, 0]])
    return {"embedding": rows, "rows": np.full((len(text), 1), len(text))}


if __name__ == "__main__":
    pytriton.connect().register(
        embed,
        "embed",
        inputs=[Tensor(name="text", dtype=bytes, shape=(1,))],
        outputs=[
            Tensor(name="embedding", dtype=np.float32, shape=(4,)),
            Tensor(name="rows", dtype=np.int32, shape=(1,)),
        ],
        config=ModelConfig(
            max_batch_size=64, batcher=DynamicBatcher(max_queue_delay_microseconds=5000)
        ),
        replace=True,
    )
