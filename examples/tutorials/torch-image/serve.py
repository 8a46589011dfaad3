"""Register the network. Requests contain PNG or JPEG files unchanged."""

from pathlib import Path

import numpy as np

import pytriton
from pytriton import ModelConfig, Tensor, batch

FILE = Path(__file__).parent.resolve() / "digits.pt"


def make():
    """Run once in each worker, on the worker's GPU."""
    import io

    import torch
    from network import load
    from PIL import Image

    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = load(str(FILE), device)

    def pixels(file: bytes):
        with Image.open(io.BytesIO(file)) as image:
            return np.asarray(image.convert("L").resize((8, 8)), np.float32) / 255

    @batch
    def classify(file):
        images = torch.from_numpy(np.stack([pixels(one) for one in file[:, 0]]))[:, None]
        with torch.inference_mode():
            scores = network(images.to(device)).softmax(1).cpu().numpy()
        return {"digit": scores.argmax(axis=1)[:, None], "score": scores.max(axis=1)[:, None]}

    return classify


if __name__ == "__main__":
    model = pytriton.connect().register(
        make,
        "digit-images",
        inputs=[Tensor(name="file", dtype=bytes, shape=(1,))],
        outputs=[
            Tensor(name="digit", dtype=np.int64, shape=(1,)),
            Tensor(name="score", dtype=np.float32, shape=(1,)),
        ],
        config=ModelConfig(max_batch_size=32),
        factory=True,
        replace=True,
    )
    print(model.url)
