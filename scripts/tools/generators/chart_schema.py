"""Generate deploy/helm/pytriton-daemon/values.schema.json, the schema of the chart's values.

Helm rejects unknown names and wrong types, including settings that the daemon does not declare, before it creates a pod.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pytriton._host.settings.declarations import Option, options

PATH = Path("deploy/helm/pytriton-daemon/values.schema.json")
#: Settings that the chart derives from other values.
OWN = (
    "allow_http",
    "control_tcp",
    "grace_period_s",
    "grpc_address",
    "grpc_port",
    "http_address",
    "http_port",
    "keys_dir",
    "metrics_address",
    "metrics_port",
    "model_repository",
    "openai_address",
    "openai_port",
    "management_address",
    "runtime_dir",
    "state_dir",
)
_Schema = dict[str, Any]

_TEXT: _Schema = {"type": "string"}
_NAME: _Schema = {"type": "string", "pattern": "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$"}
_SWITCH: _Schema = {"type": "boolean"}
_ANY_MAP: _Schema = {"type": "object"}
_TEXT_MAP: _Schema = {"type": "object", "additionalProperties": _TEXT}
_MAP_LIST: _Schema = {"type": "array", "items": {"type": "object"}}
_COUNT: _Schema = {"type": "integer", "minimum": 0}
_POSITIVE: _Schema = {"type": "integer", "minimum": 1}
_PORT: _Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
_SIZE: _Schema = {"type": "string", "pattern": "^[0-9]+([.][0-9]+)?([KMGTPE]i?|k)?$"}
_PODS_OR_PERCENT: _Schema = {"oneOf": [_COUNT, {"type": "string", "pattern": "^[0-9]{1,3}%$"}]}


def schema() -> str:
    """Return the file's text."""
    whole = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "pytriton-daemon"}
    whole.update(_map(_workload_values(), _serving_values(), _pod_values(), _cluster_values()))
    return json.dumps(whole, indent=2) + "\n"


def _map(*parts: _Schema) -> _Schema:
    properties = {name: value for part in parts for name, value in part.items()}
    # Helm also passes `global` to subcharts.
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _one_of(*names: str) -> _Schema:
    return {"type": "string", "enum": list(names)}


def _workload_values() -> _Schema:
    digest = {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}
    policy = _one_of("Always", "IfNotPresent", "Never")
    return {
        "global": _ANY_MAP,
        "workload": _one_of("Deployment", "StatefulSet"),
        "replicas": _COUNT,
        "rollingUpdate": _map({"maxSurge": _PODS_OR_PERCENT, "maxUnavailable": _PODS_OR_PERCENT}),
        "image": _map(
            {
                "repository": {"type": "string", "minLength": 1},
                "tag": _TEXT,
                "digest": digest,
                "pullPolicy": policy,
            }
        ),
        "imagePullSecrets": _MAP_LIST,
        "nameOverride": _NAME,
        "fullnameOverride": _NAME,
    }


def _serving_values() -> _Schema:
    file = "^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+$"
    module = "^[A-Za-z_][A-Za-z0-9_]*[.]py$"
    target = "^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*$"
    models = {
        "repositories": {
            "type": "array",
            "items": {"type": "string", "pattern": "^(/|[a-z0-9]+://).+"},
        },
        "files": {**_TEXT_MAP, "propertyNames": {"pattern": file}},
        "claim": _map({"name": _NAME, "subPath": _TEXT}),
        "modules": {**_TEXT_MAP, "propertyNames": {"pattern": module}},
        "register": {"type": "array", "items": {"type": "string", "pattern": target}},
    }
    settings = {name: _setting(one) for name, one in options().items() if name not in OWN}
    return {
        "settings": _map(settings),
        "environment": _MAP_LIST,
        "environmentFrom": _MAP_LIST,
        "models": _map(models),
        "ports": _map(
            {name: _PORT for name in ("http", "grpc", "metrics", "management", "openai")}
        ),
        "listenAddress": {"type": "string", "pattern": "^[0-9a-fA-F.:]+$"},
        "service": _map(
            {
                "type": _one_of("ClusterIP", "NodePort", "LoadBalancer"),
                "annotations": _TEXT_MAP,
                "headless": _SWITCH,
            }
        ),
        "control": _map({"enabled": _SWITCH, "port": _PORT, "keysSecret": _NAME}),
    }


def _setting(option: Option) -> _Schema:
    kind = option.kind
    types = ["boolean", "string"] if kind.is_switch else ["string", "number", "array", "object"]
    return {"description": option.help, "type": types}


def _pod_values() -> _Schema:
    probe = {"periodSeconds": _POSITIVE, "failureThreshold": _POSITIVE}
    size = {"sizeLimit": _SIZE}
    retention = _one_of("Retain", "Delete")
    return {
        "preStopSeconds": _COUNT,
        "gracePeriodSeconds": _COUNT,
        "probes": _map(
            {
                "scheme": _one_of("HTTP", "HTTPS"),
                "startup": _map(probe),
                "readiness": _map(probe, {"model": _TEXT}),
                "liveness": _map(probe, {"timeoutSeconds": _POSITIVE}),
            }
        ),
        "resources": _map({name: _ANY_MAP for name in ("requests", "limits")}),
        "gpu": _map({"count": _COUNT, "resource": {"type": "string", "minLength": 1}}),
        "runtimeClassName": _NAME,
        "volumes": _map({name: _map(size) for name in ("runtime", "tmp", "shm")}),
        "state": _map(
            {
                "size": _SIZE,
                "storageClassName": _NAME,
                "whenDeleted": retention,
                "whenScaled": retention,
            }
        ),
        "extraVolumes": _MAP_LIST,
        "extraVolumeMounts": _MAP_LIST,
        "serviceAccount": _map({"create": _SWITCH, "name": _NAME, "annotations": _TEXT_MAP}),
        **{name: _ANY_MAP for name in ("podSecurityContext", "securityContext", "affinity")},
        **{name: _TEXT_MAP for name in ("podLabels", "podAnnotations", "nodeSelector")},
        "tolerations": _MAP_LIST,
        "priorityClassName": _NAME,
        "topologySpread": _MAP_LIST,
    }


def _cluster_values() -> _Schema:
    switch = {"enabled": _SWITCH}
    hpa = {**switch, "metric": {"type": "string", "minLength": 1}, "extraMetrics": _MAP_LIST}
    address = {"type": "string", "pattern": "^(https?://.+)?$"}
    keda = {
        "serverAddress": address,
        "authentication": _NAME,
        "pollingSeconds": _POSITIVE,
        "query": _TEXT,
    }
    scaling = {
        "minReplicas": _COUNT,
        "maxReplicas": _POSITIVE,
        "target": {"type": "number", "exclusiveMinimum": 0},
        "rateSeconds": {"type": "integer", "minimum": 10},
        "scaleDownSeconds": _COUNT,
        "hpa": _map(hpa),
        "keda": _map(switch, keda),
    }
    policy = {"clients": _MAP_LIST, "scrapers": _MAP_LIST, "controllers": _MAP_LIST}
    egress = {"type": ["array", "null"], "items": {"type": "object"}}
    return {
        "podDisruptionBudget": _map(switch, {"maxUnavailable": _PODS_OR_PERCENT}),
        "autoscaling": _map(scaling),
        "metrics": _map(
            {name: _map(switch) for name in ("serviceMonitor", "podMonitor", "rules")},
            {"intervalSeconds": _POSITIVE, "labels": _TEXT_MAP},
        ),
        "networkPolicy": _map(switch, policy, {"egress": egress}),
    }
