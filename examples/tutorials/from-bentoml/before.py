"""The service with BentoML 1.1: a runner that needs NVIDIA's container."""

import bentoml
import numpy as np

runner = bentoml.triton.Runner("tumours", model_repository="models")
service = bentoml.Service("tumours", runners=[runner])


@service.api(input=bentoml.io.NumpyNdarray(), output=bentoml.io.NumpyNdarray())
async def score(values: np.ndarray) -> np.ndarray:
    answer = await runner.trees.async_run(values)
    return answer.as_numpy("output__0")
