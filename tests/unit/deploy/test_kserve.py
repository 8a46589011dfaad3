"""The runtime for KServe: Kubernetes accepts its container, and the daemon its command line.

KServe's own kinds have no schema here: their container is validated as a pod's, and their other fields by the models in
KServe's Python package (kserve 0.21).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.charts.chart import HOW
from support.command_line import whole_command_line

FOLDER = Path(__file__).parents[3] / "deploy" / "kserve"
RUNTIME: dict[str, Any] = yaml.safe_load((FOLDER / "clusterservingruntime.yaml").read_text())
SERVICE: dict[str, Any] = yaml.safe_load((FOLDER / "inferenceservice.yaml").read_text())


#: Kind of object -> its fields that are allowed here, with their types.
FIELDS: dict[str, dict[str, type]] = {
    "object": {"apiVersion": str, "kind": str, "metadata": dict, "spec": dict},
    "ServingRuntimeSpec": {
        "affinity": dict, "annotations": dict, "builtInAdapter": dict, "containers": list, "disabled": bool,
        "grpcDataEndpoint": str, "grpcEndpoint": str, "hostIPC": bool, "httpDataEndpoint": str,
        "imagePullSecrets": list, "labels": dict, "multiModel": bool, "nodeSelector": dict, "protocolVersions": list,
        "replicas": int, "resourceClaims": list, "schedulerName": str, "storageHelper": dict,
        "supportedModelFormats": list, "tolerations": list, "volumes": list, "workerSpec": dict,
    },
    "SupportedModelFormat": {"autoSelect": bool, "name": str, "priority": int, "version": str},
    "InferenceServiceSpec": {"explainer": dict, "predictor": dict, "transformer": dict},
    "PredictorSpec": {"maxReplicas": int, "minReplicas": int, "model": dict},
    "ModelSpec": {
        "modelFormat": dict, "protocolVersion": str, "resources": dict, "runtime": str, "runtimeVersion": str,
        "storage": dict, "storageUri": str,
    },
    "ModelFormat": {"name": str, "version": str},
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("object", RUNTIME),
        ("object", SERVICE),
        ("ServingRuntimeSpec", RUNTIME["spec"]),
        *(("SupportedModelFormat", one) for one in RUNTIME["spec"]["supportedModelFormats"]),
        ("InferenceServiceSpec", SERVICE["spec"]),
        ("PredictorSpec", SERVICE["spec"]["predictor"]),
        ("ModelSpec", SERVICE["spec"]["predictor"]["model"]),
        ("ModelFormat", SERVICE["spec"]["predictor"]["model"]["modelFormat"]),
    ],
)
def test_kserve_knows_the_fields(kind: str, given: dict[str, Any]) -> None:
    for name, value in given.items():
        assert type(value) is FIELDS[kind][name], f"{kind}.{name}"


def test_the_example_names_the_runtime_and_a_supported_format() -> None:
    model = SERVICE["spec"]["predictor"]["model"]
    assert model["runtime"] == RUNTIME["metadata"]["name"]
    formats = [(one["name"], one["version"]) for one in RUNTIME["spec"]["supportedModelFormats"]]
    assert (model["modelFormat"]["name"], model["modelFormat"]["version"]) in formats
    assert model["protocolVersion"] in RUNTIME["spec"]["protocolVersions"]


def test_the_daemon_accepts_the_command_line() -> None:
    (container,) = RUNTIME["spec"]["containers"]
    words = [*container["command"], *container["args"]]
    assert words[0] == "pytriton-daemon"
    command: Any = whole_command_line()
    start = command.get_command(None, words[1])
    context = start.make_context(words[1], words[2:])  # raises for an unknown flag
    assert context.params["http_port"] == "8080"
    assert container["readinessProbe"]["httpGet"]["port"] == 8080


def test_the_pod_matches_kubernetes_schema() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason=HOW)
    spec = {key: RUNTIME["spec"][key] for key in ("containers", "volumes")}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}
    kubernetes_validate.validate(json.loads(json.dumps(pod)), "1.32", strict=True)
    mounted = {mount["name"] for mount in spec["containers"][0]["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}
