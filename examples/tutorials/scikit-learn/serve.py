"""Register the classifier. The daemon loads it in two workers."""

from pathlib import Path

import numpy as np

import pytriton
from pytriton import ModelConfig, Tensor, batch

FILE = Path(__file__).parent.resolve() / "digits.joblib"


def load():
    """Run once in each worker, and return the callable to serve."""
    import joblib

    classifier = joblib.load(FILE)

    @batch
    def classify(image):
        probabilities = classifier.predict_proba(image)
        return {"digit": probabilities.argmax(axis=1)[:, None], "probabilities": probabilities}

    return classify


if __name__ == "__main__":
    model = pytriton.connect().register(
        load,
        "digits",
        inputs=[Tensor(name="image", dtype=np.float32, shape=(64,))],
        outputs=[
            Tensor(name="digit", dtype=np.int64, shape=(1,)),
            Tensor(name="probabilities", dtype=np.float32, shape=(10,)),
        ],
        config=ModelConfig(max_batch_size=64),
        factory=True,
        instances=2,
        replace=True,
    )
    print(model.url)
