"""The fleet on KubeRay: Kubernetes accepts its pods, the program its commands, and names refer to each other.

No package has the schema of KubeRay's own kind: its pods are validated as pods, and its other fields by those documented
for KubeRay 1.6 (docs.ray.io, "KubeRay CRD API reference").
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.charts.chart import HOW
from support.command_line import whole_command_line

FOLDER = Path(__file__).parents[3] / "deploy" / "kuberay"
CLUSTER: dict[str, Any] = yaml.safe_load((FOLDER / "raycluster.yaml").read_text())
OBJECTS: list[dict[str, Any]] = list(yaml.safe_load_all((FOLDER / "balancer.yaml").read_text()))
BALANCER = OBJECTS[0]["spec"]["template"]["spec"]
HEAD = CLUSTER["spec"]["headGroupSpec"]["template"]["spec"]
(WORKERS,) = CLUSTER["spec"]["workerGroupSpecs"]
NODE = WORKERS["template"]["spec"]
_GROUP = {"rayStartParams": dict, "template": dict}
#: Kind of object -> its fields, as documented.
FIELDS: dict[str, dict[str, type]] = {
    "RayCluster": {"apiVersion": str, "kind": str, "metadata": dict, "spec": dict},
    "RayClusterSpec": {
        "authOptions": dict, "autoscalerOptions": dict, "enableInTreeAutoscaling": bool,
        "gcsFaultToleranceOptions": dict, "headGroupSpec": dict, "headServiceAnnotations": dict, "managedBy": str,
        "rayVersion": str, "suspend": bool,
        "workerGroupSpecs": list,
    },
    "AuthOptions": {"mode": str, "enableK8sTokenAuth": bool, "secretName": str},
    "AutoscalerOptions": {
        "env": list, "envFrom": list, "idleTimeoutSeconds": int, "image": str, "imagePullPolicy": str,
        "resources": dict, "securityContext": dict, "upscalingMode": str, "version": str, "volumeMounts": list,
    },
    "HeadGroupSpec": {
        **_GROUP, "enableIngress": bool, "headService": dict, "resources": dict, "labels": dict, "serviceType": str,
    },
    "WorkerGroupSpec": {
        **_GROUP, "groupName": str, "idleTimeoutSeconds": int, "labels": dict, "maxReplicas": int, "minReplicas": int,
        "numOfHosts": int, "replicas": int, "resources": dict, "scaleStrategy": dict, "suspend": bool,
    },
}  # fmt: skip
PODS = {"head": HEAD, "node": NODE, "balancer": BALANCER}


def taken(words: list[str]) -> Any:
    """Return the parsed parameters of one of our commands; raises for unknown flags."""
    assert words[0] == "pytriton-daemon"
    command: Any = whole_command_line()
    context: Any = None
    for depth, word in enumerate(words[1:], 2):
        command = command.get_command(context, word)
        if not hasattr(command, "get_command"):
            return command.make_context(word, words[depth:]).params
    raise AssertionError(f"no command: {words}")


def test_the_program_accepts_the_commands() -> None:
    (fleet,), (balancer,) = BALANCER["initContainers"], BALANCER["containers"]
    started = taken([*fleet["command"], *fleet["args"]])
    assert list(started["flags"])[:2] == ["--http-address", "0.0.0.0"]
    taken(["pytriton-daemon", "start", *started["flags"]])
    balanced = taken([*balancer["command"], *balancer["args"]])
    ports = {one["name"]: one["containerPort"] for one in balancer["ports"]}
    assert balanced["http"] == f"0.0.0.0:{ports['http']}"
    assert balanced["grpc"] == f"0.0.0.0:{ports['grpc']}"
    assert started["name"] == balanced["name"]  # the same fleet
    (node,) = NODE["containers"]
    drained = taken(node["lifecycle"]["preStop"]["exec"]["command"])
    assert drained["node"] is None  # the one that it is run on
    assert drained["timeout"] < NODE["terminationGracePeriodSeconds"]


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("RayCluster", CLUSTER),
        ("RayClusterSpec", CLUSTER["spec"]),
        ("AuthOptions", CLUSTER["spec"]["authOptions"]),
        ("AutoscalerOptions", CLUSTER["spec"]["autoscalerOptions"]),
        ("HeadGroupSpec", CLUSTER["spec"]["headGroupSpec"]),
        ("WorkerGroupSpec", WORKERS),
    ],
)
def test_kuberay_knows_the_fields(kind: str, given: dict[str, Any]) -> None:
    for name, value in given.items():
        assert type(value) is FIELDS[kind][name], f"{kind}.{name}"
    if "rayStartParams" in given:
        assert all(type(one) is str for one in given["rayStartParams"].values())


def test_the_autoscaler_matches_kuberays_settings() -> None:
    """Otherwise Ray uses its second version, and KubeRay restarts a node in another one's pod."""
    assert CLUSTER["spec"]["autoscalerOptions"]["version"] == "v2"
    assert all("restartPolicy" not in pod for pod in (HEAD, NODE))  # KubeRay then requires Never


def test_names_refer_to_each_other() -> None:
    name = CLUSTER["metadata"]["name"]
    client = next(one for one in HEAD["containers"][0]["ports"] if one["name"] == "client")
    for container in (*BALANCER["initContainers"], *BALANCER["containers"]):
        assert f"ray://{name}-head-svc:{client['containerPort']}" in container["command"]
        token = next(one for one in container["env"] if one["name"] == "RAY_AUTH_TOKEN")
        assert token["valueFrom"]["secretKeyRef"] == {"name": name, "key": "auth_token"}
    assert CLUSTER["spec"]["authOptions"] == {"mode": "token"}
    labels = OBJECTS[0]["spec"]["template"]["metadata"]["labels"]
    assert all(labels == one["spec"]["selector"] for one in OBJECTS if one["kind"] == "Service")
    images = {one["image"] for pod in PODS.values() for one in pod["containers"]}
    assert len(images) == 1  # one environment: Ray's nodes and clients must have the same Python


@pytest.mark.parametrize("pod", PODS)
def test_the_pods_match_kubernetes_schemas(pod: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason=HOW)
    whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": PODS[pod]}
    kubernetes_validate.validate(json.loads(json.dumps(whole)), "1.32", strict=True)
    for container in PODS[pod]["containers"]:
        mounted = {one["name"] for one in container.get("volumeMounts", [])}
        assert mounted == {one["name"] for one in PODS[pod].get("volumes", [])}


@pytest.mark.parametrize("index", range(len(OBJECTS)))
def test_the_balancers_objects_match_kubernetes_schemas(index: int) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason=HOW)
    kubernetes_validate.validate(json.loads(json.dumps(OBJECTS[index])), "1.32", strict=True)


@pytest.mark.parametrize("pod", PODS)
def test_the_pods_are_restricted(pod: str) -> None:
    for container in (*PODS[pod].get("initContainers", []), *PODS[pod]["containers"]):
        context = container["securityContext"]
        assert context["runAsNonRoot"]
        assert not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]}
