"""A model that calls the ONNX model: it takes pictures of 8 by 8 pixels and returns words."""

import numpy as np

import pytriton
from pytriton import ModelConfig, Tensor, batch, declare

WORDS = np.array(
    [b"zero", b"one", b"two", b"three", b"four", b"five", b"six", b"seven", b"eight", b"nine"]
)


@declare(
    name="names",
    inputs=[Tensor(name="picture", dtype=np.uint8, shape=(8, 8))],
    outputs=[Tensor(name="word", dtype=bytes, shape=(1,))],
    config=ModelConfig(max_batch_size=64),
)
@batch
def names(picture):
    image = picture.reshape(len(picture), 64).astype(np.float32) / 16
    digits = pytriton.infer("digits", image=image)["label"].ravel()
    return {"word": WORDS[digits][:, None]}
