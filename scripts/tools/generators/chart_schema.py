"""deploy/helm/pytriton-daemon/values.schema.json: what the chart's values may be.

Helm refuses a name or a type that is not here. The settings are those that the daemon declares: Helm refuses a
misspelled one before it makes a pod.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pytriton._host.settings.declarations import Option, options

PATH = Path("deploy/helm/pytriton-daemon/values.schema.json")
#: Settings that the chart makes of other values.
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
_MAPS: _Schema = {"type": "array", "items": {"type": "object"}}
_COUNT: _Schema = {"type": "integer", "minimum": 0}
_SOME: _Schema = {"type": "integer", "minimum": 1}
_PORT: _Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
_SIZE: _Schema = {"type": "string", "pattern": "^[0-9]+([.][0-9]+)?([KMGTPE]i?|k)?$"}
_PODS: _Schema = {"oneOf": [_COUNT, {"type": "string", "pattern": "^[0-9]{1,3}%$"}]}


def schema() -> str:
    """Return the text of the file."""
    whole = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "pytriton-daemon"}
    whole.update(_map(_workload(), _serving(), _running(), _around()))
    return json.dumps(whole, indent=2) + "\n"


def _map(*parts: _Schema) -> _Schema:
    properties = {name: value for part in parts for name, value in part.items()}
    # Subcharts get `global`, whatever they are.
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _one_of(*names: str) -> _Schema:
    return {"type": "string", "enum": list(names)}


def _workload() -> _Schema:
    digest = {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}
    policy = _one_of("Always", "IfNotPresent", "Never")
    return {
        "global": _ANY_MAP,
        "workload": _one_of("Deployment", "StatefulSet"),
        "replicas": _COUNT,
        "rollingUpdate": _map({"maxSurge": _PODS, "maxUnavailable": _PODS}),
        "image": _map(
            {
                "repository": {"type": "string", "minLength": 1},
                "tag": _TEXT,
                "digest": digest,
                "pullPolicy": policy,
            }
        ),
        "imagePullSecrets": _MAPS,
        "nameOverride": _NAME,
        "fullnameOverride": _NAME,
    }


def _serving() -> _Schema:
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
        "environment": _MAPS,
        "environmentFrom": _MAPS,
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


def _running() -> _Schema:
    tries = {"periodSeconds": _SOME, "failureThreshold": _SOME}
    size = {"sizeLimit": _SIZE}
    kept = _one_of("Retain", "Delete")
    return {
        "preStopSeconds": _COUNT,
        "gracePeriodSeconds": _COUNT,
        "probes": _map(
            {
                "scheme": _one_of("HTTP", "HTTPS"),
                "startup": _map(tries),
                "readiness": _map(tries, {"model": _TEXT}),
                "liveness": _map(tries, {"timeoutSeconds": _SOME}),
            }
        ),
        "resources": _map({name: _ANY_MAP for name in ("requests", "limits")}),
        "gpu": _map({"count": _COUNT, "resource": {"type": "string", "minLength": 1}}),
        "runtimeClassName": _NAME,
        "volumes": _map({name: _map(size) for name in ("runtime", "tmp", "shm")}),
        "state": _map(
            {"size": _SIZE, "storageClassName": _NAME, "whenDeleted": kept, "whenScaled": kept}
        ),
        "extraVolumes": _MAPS,
        "extraVolumeMounts": _MAPS,
        "serviceAccount": _map({"create": _SWITCH, "name": _NAME, "annotations": _TEXT_MAP}),
        **{name: _ANY_MAP for name in ("podSecurityContext", "securityContext", "affinity")},
        **{name: _TEXT_MAP for name in ("podLabels", "podAnnotations", "nodeSelector")},
        "tolerations": _MAPS,
        "priorityClassName": _NAME,
        "topologySpread": _MAPS,
    }


def _around() -> _Schema:
    switch = {"enabled": _SWITCH}
    hpa = {**switch, "metric": {"type": "string", "minLength": 1}, "extraMetrics": _MAPS}
    address = {"type": "string", "pattern": "^(https?://.+)?$"}
    keda = {
        "serverAddress": address,
        "authentication": _NAME,
        "pollingSeconds": _SOME,
        "query": _TEXT,
    }
    scaling = {
        "minReplicas": _COUNT,
        "maxReplicas": _SOME,
        "target": {"type": "number", "exclusiveMinimum": 0},
        "rateSeconds": {"type": "integer", "minimum": 10},
        "scaleDownSeconds": _COUNT,
        "hpa": _map(hpa),
        "keda": _map(switch, keda),
    }
    policy = {"clients": _MAPS, "scrapers": _MAPS, "controllers": _MAPS}
    egress = {"type": ["array", "null"], "items": {"type": "object"}}
    return {
        "podDisruptionBudget": _map(switch, {"maxUnavailable": _PODS}),
        "autoscaling": _map(scaling),
        "metrics": _map(
            {name: _map(switch) for name in ("serviceMonitor", "podMonitor", "rules")},
            {"intervalSeconds": _SOME, "labels": _TEXT_MAP},
        ),
        "networkPolicy": _map(switch, policy, {"egress": egress}),
    }
