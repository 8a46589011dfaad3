"""Train a classifier of handwritten digits and register it with the running daemon.

    python examples/digits/train_and_register.py

The trained model is pickled and loaded by the daemon's worker processes, so it is still served after this script
has exited.
"""

from __future__ import annotations

import time

import numpy as np
from digits import MODEL_NAME, Array, load
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pytriton.daemon import connect
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor


def main() -> None:
    """Train, register, and print a summary."""
    training, held_out, labels, held_out_labels = load()
    started = time.monotonic()
    network = MLPClassifier([64], solver="lbfgs", alpha=1.0, max_iter=400, random_state=0)
    classifier = make_pipeline(StandardScaler(), network)
    classifier.fit(training, labels)
    seconds = time.monotonic() - started
    accuracy = classifier.score(held_out, held_out_labels)
    print(f"trained on {len(training)} images in {seconds:.1f} s, accuracy here {accuracy:.3f}")

    @batch
    def classify(image: Array) -> dict[str, Array]:
        """Classify a batch: (n, 64) float32 to labels (n, 1) and a probability per digit (n, 10)."""
        probabilities = classifier.predict_proba(image)
        return {"label": probabilities.argmax(axis=1)[:, None], "probabilities": probabilities}

    client = connect()
    model = client.register(
        classify,
        MODEL_NAME,
        inputs=[Tensor(name="image", dtype=np.float32, shape=(64,))],
        outputs=[
            Tensor(name="label", dtype=np.int64, shape=(1,)),
            Tensor(name="probabilities", dtype=np.float32, shape=(10,)),
        ],
        config=ModelConfig(max_batch_size=64),
        instances=2,
        replace=True,
    )
    pids = ", ".join(str(instance.pid) for instance in model.instances)
    print(f"registered {model.name} at {model.url}, workers with pids {pids}")


if __name__ == "__main__":
    main()
