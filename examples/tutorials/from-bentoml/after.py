"""The same runner without BentoML and without a container."""

import asyncio

from sklearn.datasets import load_breast_cancer

from pytriton.runner import Runner

runner = Runner("tumours", model_repository="models")


async def score(values):
    answer = await runner.trees.async_run(values)
    return answer.as_numpy("output__0")


if __name__ == "__main__":
    values, _ = load_breast_cancer(return_X_y=True)
    with runner:
        scores = asyncio.run(score(values[:2]))
        label = runner.label.run(scores.reshape(2, 1))
    print(*(name.decode() for name in label.as_numpy("label").ravel()))
