"""The Helm chart: Helm's linter, and Kubernetes' schemas of every supported version for what it renders.

The schemas do not cover third-party kinds (ServiceMonitor, ScaledObject ...): tests check what the chart renders.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from support.charts.chart import CHART, HOW, Object, load_chart, only, pod_of, render, require_helm

from pytriton._host.settings.declarations import DaemonConfig
from pytriton._host.settings.sources import load

helm = require_helm()
kubernetes_validate = pytest.importorskip("kubernetes_validate", reason=HOW)

FILES = {"linear/1/model.py": "import numpy\n", "linear/config.pbtxt": 'name: "linear"\n'}
MODELS = {
    "repositories": ["/models/image", "s3://bucket/with space"],
    "files": FILES,
    "claim": {"name": "models", "subPath": "team"},
    "modules": {"linear.py": "y = 1\n"},
    "register": ["linear:infer_fn"],
}
CONTROL = {"enabled": True, "keysSecret": "keys"}
KEDA = {"keda": {"enabled": True, "serverAddress": "http://prometheus:9090", "authentication": "t"}}
MONITORED = {name: {"enabled": True} for name in ("serviceMonitor", "podMonitor", "rules")}
#: Common choices of values, separately and combined.
CASES: dict[str, Object] = {
    "as it comes": {},
    "stateful": {"workload": "StatefulSet", "state": {"storageClassName": "fast"}},
    "models": {"models": MODELS},
    "gpu": {"gpu": {"count": 2}, "runtimeClassName": "nvidia", "tolerations": [{"key": "a"}]},
    "image by digest": {
        "image": {"digest": f"sha256:{'a' * 64}"},
        "imagePullSecrets": [{"name": "r"}],
    },
    "control": {"control": CONTROL, "networkPolicy": {"controllers": [{"podSelector": {}}]}},
    "openai": {
        "ports": {"openai": 80},
        "settings": {"openai_keys_file": "/openai/keys.toml"},
        "extraVolumes": [{"name": "openai", "secret": {"secretName": "openai-keys"}}],
        "extraVolumeMounts": [{"name": "openai", "mountPath": "/openai", "readOnly": True}],
    },
    "hpa": {"autoscaling": {"hpa": {"enabled": True}, "target": 0.5}},
    "keda": {"workload": "StatefulSet", "autoscaling": KEDA},
    "monitored": {"metrics": {**MONITORED, "labels": {"release": "prometheus"}}},
    "closed": {"networkPolicy": {"egress": [], "clients": [], "scrapers": []}},
    "open": {"networkPolicy": {"enabled": False}, "podDisruptionBudget": {"enabled": False}},
    "around": {
        "service": {"type": "LoadBalancer", "headless": True, "annotations": {"a": "b"}},
        "serviceAccount": {"create": False, "name": "mine"},
        "affinity": {"podAntiAffinity": {}},
        "nodeSelector": {"a": "b"},
        "priorityClassName": "high",
        "topologySpread": [],
        "podLabels": {"team": "a"},
        "podAnnotations": {"note": "b"},
        "environment": [{"name": "A", "value": "b"}],
        "environmentFrom": [{"secretRef": {"name": "s"}}],
        "extraVolumes": [{"name": "more", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
        "listenAddress": "::",
        "probes": {"scheme": "HTTPS", "readiness": {"model": "linear"}},
        "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 1},
    },
}
CASES["all of it"] = {
    **{key: value for case in CASES.values() for key, value in case.items()},
    "metrics": MONITORED,
    "models": MODELS,
}
#: Kinds without a Kubernetes schema.
FOREIGN = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "ScaledObject"}


@pytest.fixture(scope="module", autouse=True)
def _schemas_are_read_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        contents = functools.lru_cache(maxsize=None)(kubernetes_validate.utils.schema_contents)
        patch.setattr(kubernetes_validate.utils, "schema_contents", contents)
        yield


def versions() -> list[str]:
    """Return the versions that the chart supports."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    first = re.fullmatch(r">=1\.(\d+)\.0-0", chart["kubeVersion"])
    assert first
    every: list[str] = kubernetes_validate.utils.all_versions()
    return sorted({one for one in every if int(one.split(".")[1]) >= int(first[1])})


@pytest.mark.parametrize("case", CASES)
def test_the_linter_reports_nothing(case: str) -> None:
    report = helm.lint(CHART, CASES[case], strict=True)
    assert report["errors"] == []
    assert [one for one in report["messages"] if one["severity"] > 1] == []


@pytest.mark.parametrize("case", CASES)
def test_rendered_objects_match_kubernetes_schemas(case: str) -> None:
    objects = [one for one in render(CASES[case]) if one["kind"] not in FOREIGN]
    assert {"Service", "Deployment" if "workload" not in CASES[case] else "StatefulSet"} <= {
        one["kind"] for one in objects
    }
    for version in (versions()[0], versions()[-1]) if case != "all of it" else versions():
        for one in objects:
            kubernetes_validate.validate(one, version, strict=True)


def test_the_schemas_refuse_invalid_objects() -> None:
    (one,) = [one for one in render({}) if one["kind"] == "Deployment"]
    one["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="livenessprobe"):
        kubernetes_validate.validate(one, versions()[-1], strict=True)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replica": 3}, "replica"),
        ({"settings": {"ready_wen": "up"}}, "ready_wen"),
        ({"settings": {"http_port": 80}}, "http_port"),
        ({"settings": {"openai_port": 80}}, "openai_port"),
        ({"ports": {"openai": 0}}, "openai"),
        ({"workload": "DaemonSet"}, "workload"),
        ({"image": {"digest": "sha256:short"}}, "digest"),
        ({"models": {"register": ["no_colon"]}}, "register"),
        ({"models": {"files": {"../../etc/passwd": ""}}}, "../../etc/passwd"),
        ({"control": {"enabled": True}}, "control.keysSecret"),
        ({"autoscaling": {**KEDA, "hpa": {"enabled": True}}}, "enable only one"),
        ({"autoscaling": {"keda": {"enabled": True}}}, "serverAddress"),
        ({"autoscaling": {"minReplicas": 9, "maxReplicas": 3}}, "minReplicas"),
        ({"workload": "StatefulSet", "settings": {"ephemeral": True}}, "ephemeral"),
    ],
)
def test_invalid_values_are_refused_by_name(values: Object, said: str) -> None:
    with pytest.raises(helm.HelmError, match=re.escape(said)):
        render(values)


def test_the_schema_has_each_value() -> None:
    """Including nested values, so that unknown ones are refused."""

    def known(values: Any, schema: Any, where: str) -> Iterator[str]:
        for name, value in values.items():
            if name not in schema["properties"]:
                yield f"{where}{name}"
            elif isinstance(value, dict) and "properties" in schema["properties"][name]:
                yield from known(value, schema["properties"][name], f"{where}{name}.")

    chart = load_chart()
    assert list(known(chart.values, chart.schema, "")) == []


def environment(container: Object) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container["env"]}


def config_of(container: Object) -> DaemonConfig:
    """Return the settings that a container's daemon reads from its command line and environment."""
    words = (word[2:].partition("=") for word in container["command"][2:])
    flags = {name.replace("-", "_"): value for name, _, value in words}
    return load(flags, environment(container)).config


def test_settings_reach_the_daemon_with_their_meaning() -> None:
    """Numbers, switches, lists, and options that contain quotes."""
    settings = {
        "response_cache_size": 10_000_000,
        "server_probe_timeout_s": 7.5,
        "install_packages": True,
        "restricted_endpoints": [],
        "frontend": "native",
        "frontend_limit": ["connections=5", "streams=6"],
        "tritonserver_options": {"log-verbose": 1, "cache-config": ["a,b=c d", "e,f='g'"]},
        "readiness": "all_attempted",
    }
    container = pod_of(render({"settings": settings, "models": MODELS}))["containers"][0]
    config = config_of(container)
    assert config.response_cache_size == 10_000_000
    assert config.server_probe_timeout_s == 7.5
    assert config.install_packages
    assert config.restricted_endpoints == ()
    assert config.frontend_limit == ("connections=5", "streams=6")
    assert config.readiness == "all_attempted"
    assert config.model_repository == (
        "/models/image",
        "s3://bucket/with space",
        "/models/files",
        "/models/claim",
    )
    options = {"log-verbose": "1", "cache-config": ["a,b=c d", "e,f='g'"]}
    assert config.tritonserver_options == options
    assert config.http_address == "0.0.0.0"
    assert config.grace_period_s == 30


@pytest.mark.parametrize("workload", ["Deployment", "StatefulSet"])
def test_a_pod_has_minimal_privileges(workload: str) -> None:
    """Pod Security Standards' "restricted", and a read-only root file system."""
    pod = pod_of(render({"workload": workload, "models": MODELS, "control": CONTROL}))
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod["automountServiceAccountToken"]
    assert [one["name"] for one in pod["initContainers"]] == ["keys", "register"]
    for container in (*pod["initContainers"], *pod["containers"]):
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"]
        assert not rights["allowPrivilegeEscalation"]
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]


def test_every_mounted_volume_exists() -> None:
    for case, values in CASES.items():
        objects = render(values)
        pod = pod_of(objects)
        volumes = {one["name"] for one in pod["volumes"]}
        claims = [one for one in objects if one["kind"] == "StatefulSet"]
        volumes |= {
            one["metadata"]["name"]
            for set_ in claims
            for one in set_["spec"]["volumeClaimTemplates"]
        }
        containers = (*pod.get("initContainers", ()), *pod["containers"])
        mounted = {mount["name"] for one in containers for mount in one["volumeMounts"]}
        assert mounted <= volumes, case
        assert all(
            "sizeLimit" in one["emptyDir"]
            for one in pod["volumes"]
            if "emptyDir" in one and one["name"] != "more"
        ), case


def test_a_pod_ends_after_its_drain() -> None:
    pod = pod_of(render({"preStopSeconds": 7, "gracePeriodSeconds": 90}))
    assert pod["terminationGracePeriodSeconds"] > 7 + 90
    hook = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert hook == ["pytriton-daemon", "drain", "--keep-running", "--settle", "7"]
    assert environment(pod["containers"][0])["PYTRITON_DAEMON_GRACE_PERIOD_S"] == "90"


def test_gpus_are_requested_and_tolerated() -> None:
    pod = pod_of(render({"gpu": {"count": 2, "resource": "nvidia.com/mig-1g.5gb"}}))
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/mig-1g.5gb"] == 2
    assert pod["tolerations"][0]["key"] == "nvidia.com/mig-1g.5gb"
    assert "tolerations" not in pod_of(render({}))


def test_changed_models_cause_a_rollout() -> None:
    def checksum(text: str) -> str:
        objects = render({"models": {"files": {"linear/1/model.py": text}}})
        template = only(objects, "Deployment")["spec"]["template"]
        found: str = template["metadata"]["annotations"]["checksum/models"]
        return found

    assert checksum("a") == checksum("a") != checksum("b")


def test_model_files_are_mounted_at_their_paths() -> None:
    objects = render({"models": {"files": FILES}})
    data = only(objects, "ConfigMap")["data"]
    (volume,) = [one for one in pod_of(objects)["volumes"] if one["name"] == "files"]
    items = volume["configMap"]["items"]
    assert {one["path"]: data[one["key"]] for one in items} == FILES
    assert all(re.fullmatch(r"[-._a-zA-Z0-9]+", key) for key in data)


def test_with_an_autoscaler_the_number_of_pods_is_not_set() -> None:
    assert only(render({}), "Deployment")["spec"]["replicas"] == 2
    for case in ("hpa", "keda"):
        objects = render(CASES[case])
        workload = next(one for one in objects if one["kind"] in ("Deployment", "StatefulSet"))
        assert "replicas" not in workload["spec"]
        scaler = next(
            o for o in objects if o["kind"] in ("HorizontalPodAutoscaler", "ScaledObject")
        )
        assert scaler["spec"]["scaleTargetRef"] == {
            "apiVersion": "apps/v1",
            "kind": workload["kind"],
            "name": workload["metadata"]["name"],
        }
    trigger = scaler["spec"]["triggers"][0]
    assert trigger["metricType"] == "Value"  # the ratio over all pods is not per pod
    assert trigger["metadata"]["threshold"] == "1"
    assert 'namespace="serving"' in trigger["metadata"]["query"]


def test_a_closed_network_allows_no_ingress() -> None:
    """A rule without peers would allow everybody."""
    policy = only(render(CASES["closed"]), "NetworkPolicy")["spec"]
    assert policy["ingress"] in (None, [])
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert [sorted(rule) for rule in policy["egress"]] == [["ports"]]  # DNS alone
    assert only(render({}), "NetworkPolicy")["spec"]["policyTypes"] == ["Ingress"]


@pytest.mark.parametrize(("values", "port"), [({}, 8003), (CASES["openai"], 80)])
def test_the_openai_api_is_open_to_http_clients(values: Object, port: int) -> None:
    """Prometheus has its own port."""
    objects = render({**values, "networkPolicy": {"clients": [{"podSelector": {}}]}})
    config = config_of(pod_of(objects)["containers"][0])
    assert (config.openai_address, config.openai_port) == ("0.0.0.0", port)
    (offered,) = [
        one for one in only(objects, "Service")["spec"]["ports"] if one["name"] == "openai"
    ]
    assert (offered["port"], offered["targetPort"]) == (port, "openai")
    rules = only(objects, "NetworkPolicy")["spec"]["ingress"]
    assert [{one["port"] for one in rule["ports"]} for rule in rules] == [
        {"http", "grpc", "openai"},
        {"metrics", "management"},
    ]


def test_every_service_port_exists_in_the_pod() -> None:
    for case, values in CASES.items():
        objects = render(values)
        ports = pod_of(objects)["containers"][0]["ports"]
        names = {one["name"]: one["containerPort"] for one in ports}
        config = config_of(pod_of(objects)["containers"][0])
        assert names["openai"] == config.openai_port, case
        for service in (one for one in objects if one["kind"] == "Service"):
            for one in service["spec"]["ports"]:
                assert names[one["targetPort"]] == one["port"], (case, one)


def test_monitors_find_the_service_and_its_port() -> None:
    objects = render(
        {"metrics": {**MONITORED, "labels": {"release": "p"}}, "service": {"headless": True}}
    )
    wanted = only(objects, "ServiceMonitor")["spec"]
    found = [
        one["metadata"]["name"]
        for one in objects
        if one["kind"] == "Service"
        and wanted["selector"]["matchLabels"].items() <= one["metadata"]["labels"].items()
    ]
    assert found == [
        "models-pytriton-daemon"
    ]  # once, because the headless service has the same pods
    ports = {one["name"] for one in only(objects, "Service", found[0])["spec"]["ports"]}
    assert {one["port"] for one in wanted["endpoints"]} <= ports
    assert only(objects, "PodMonitor")["metadata"]["labels"]["release"] == "p"


def test_rules_keep_the_templates_of_prometheus() -> None:
    groups = only(render({"metrics": MONITORED}), "PrometheusRule")["spec"]["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    assert any("{{ $labels.pod }}" in one["annotations"]["summary"] for one in alerts)
    recorded = {rule.get("record") for group in groups for rule in group["rules"]}
    hpa = only(render(CASES["hpa"]), "HorizontalPodAutoscaler")["spec"]["metrics"][0]
    assert hpa["pods"]["metric"]["name"] in recorded


def test_the_chart_contains_the_projects_rules() -> None:
    """All of deploy/monitoring, in groups with distinct names."""
    groups = only(render({"metrics": MONITORED}), "PrometheusRule")["spec"]["groups"]
    names = [group["name"] for group in groups]
    assert len(set(names)) == len(names)
    there = [rule for group in groups for rule in group["rules"]]
    for file in ("rules.yml", "alerts.yml"):
        shared = yaml.safe_load((CHART.parents[1] / "monitoring" / file).read_text())["groups"]
        assert shared
        assert all(rule in there for group in shared for rule in group["rules"])
