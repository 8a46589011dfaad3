"""http/: the protocols of SageMaker and Vertex AI."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from support.frontend.process import Built, running
from support.frontend.raw_http import ask, data_of, head, json_of


def test_sagemaker_loads_lists_and_unloads_models(made: Built, tmp_path: Path) -> None:
    """Only in its own folder; an ensemble counts as the model that is requested."""

    def bring(name: str, *configurations: str) -> bytes:
        for number, text in enumerate(configurations):
            folder = tmp_path / name / "model" / f"part-{number}"
            folder.mkdir(parents=True)
            (folder / "config.pbtxt").write_text(text)
        return json.dumps({"model_name": name, "url": f"{tmp_path}/{name}/model"}).encode()

    one, ensemble, many = (
        bring("echo", ""),
        bring("e", "", "ensemble_scheduling {", ""),
        bring("m", "", ""),
    )
    outside = json.dumps({"model_name": "x", "url": f"{tmp_path}/echo/../../x"}).encode()
    with running(made, protocol="sagemaker", sagemaker={"folder": str(tmp_path)}) as frontend:

        def said(line: str, body: bytes = b"") -> tuple[int, bytes]:
            status, _, answer = ask(frontend, head(line, (), body))
            return status, answer

        assert said("GET /ping")[0] == 200
        assert said("POST /models/echo/invoke", json_of())[0] == 404
        assert said("POST /models", one) == (200, b"")
        assert said("POST /models", one)[0] == 409
        assert said("POST /models", ensemble)[0] == 200
        assert said("POST /models", many)[0] == 400
        assert b"a directory in" in said("POST /models", outside)[1]
        assert said("POST /models", b"{}")[0] == 400
        named = {"modelName": "echo", "modelUrl": f"{tmp_path}/echo/model"}
        assert json.loads(said("GET /models/echo")[1]) == named
        listed = json.loads(said("GET /models")[1])["models"]
        assert [model["modelName"] for model in listed if model != named] == ["e"]
        assert said("POST /models/echo/invoke", json_of())[0] == 200
        assert said("DELETE /models/echo")[0] == 200
        for line in (
            "DELETE /models/echo",
            "GET /models/echo",
            "GET /models/m",
            "GET /models/e/invoke/x",
        ):
            assert said(line)[0] == 404
        assert said("POST /models", one)[0] == 200
    with running(made, protocol="sagemaker") as frontend:
        assert ask(frontend, head("POST /models", (), one))[0] == 404


_CLOUDS = {
    "sagemaker": ("/invocations", "application/vnd.sagemaker-triton.binary+json;json-header-size="),
    "vertex_ai": ("/v1/predict", "application/vnd.vertex-ai-triton.binary+json;json-header-size="),
}


@pytest.mark.parametrize("cloud", _CLOUDS)
def test_inference_paths_of_sagemaker_and_vertex_ai(made: Built, cloud: str) -> None:
    """Their content types contain the length of the JSON part, in both directions."""
    path, binary_type = _CLOUDS[cloud]
    vertex = {"health": "/v1/health", "predict": "/v1/predict", "model": "echo"}
    text = '{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","parameters":{"binary_data_size":4}}],'
    body = (text + '"parameters":{"binary_data_output":true}}').encode()
    with running(made, protocol=cloud, vertex=vertex, sagemaker={"model": "echo"}) as frontend:
        assert data_of(ask(frontend, head(f"POST {path}", (), json_of()))) == [1, 2]
        typed = [f"Content-Type: {binary_type}{len(body)}"]
        status, headers, answer = ask(
            frontend, head(f"POST {path}", typed, body + struct.pack("<f", 5))
        )
        assert status == 200
        assert headers["content-type"].startswith(binary_type)
        json_size = int(headers["content-type"][len(binary_type) :])
        assert struct.unpack("<f", answer[json_size:]) == (5,)
        assert ask(frontend, head("GET /v2/health/live"))[0] == 404
        if cloud == "vertex_ai":
            redirect = ["X-Vertex-Ai-Triton-Redirect: v2/models/thread/infer"]
            answered = ask(frontend, head(f"POST {path}", redirect, json_of()))
            assert json.loads(answered[2])["model_name"] == "thread"
            redirect = ["X-Vertex-Ai-Triton-Redirect: nowhere"]
            assert ask(frontend, head(f"POST {path}", redirect, json_of()))[0] == 404


def test_sagemaker_selects_the_kind_of_inference(made: Built) -> None:
    """Each responds like Triton's own endpoint of that name; the three differ."""
    body = b'{"prompt": "hello", "x": 1}'
    answers = set()
    with running(made) as triton:
        for kind in ("infer", "generate", "generate_stream"):
            expected = ask(triton, head(f"POST /v2/models/echo/{kind}", (), body))
            sagemaker = {"model": "echo", "inference": kind}
            with running(made, protocol="sagemaker", sagemaker=sagemaker) as frontend:
                assert ask(frontend, head("POST /invocations", (), body)) == expected
            answers.add(str(expected))
    assert len(answers) == 3
