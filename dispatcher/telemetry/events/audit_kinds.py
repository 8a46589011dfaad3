"""The kinds of events that somebody asks for: such an event says who."""

from __future__ import annotations

from pytriton.dispatcher.telemetry.events.kind import Kind

_INSTANCES = {"instances": "how many it has now"}
_CHANGED = {**_INSTANCES, "before": "how many it had before"}

REGISTERED = Kind(
    "registered", "info", "model registered", "A model is served.", _INSTANCES, asked=True
)
NOT_REGISTERED = Kind(
    "not_registered",
    "error",
    "model was not registered",
    "A model could not be served; nothing of the attempt is left.",
    asked=True,
)
REPLACED = Kind(
    "replaced",
    "info",
    "model replaced",
    "A new registration serves in the place of the former one of that name.",
    _CHANGED,
    asked=True,
)
NOT_REPLACED = Kind(
    "not_replaced",
    "error",
    "model was not replaced",
    "A new registration could not be served; the former one serves on.",
    asked=True,
)
ROLLED_BACK = Kind(
    "rolled_back",
    "info",
    "model rolled back",
    "The model is again what it was before it was replaced.",
    _CHANGED,
    asked=True,
)
NOT_ROLLED_BACK = Kind(
    "not_rolled_back",
    "error",
    "model was not rolled back",
    "What the model was before could not be served; the present one serves on.",
    asked=True,
)
TRIAL_KEPT = Kind(
    "trial_kept",
    "info",
    "model stays",
    "The model was on trial, as a part of a change of several nodes, and is there to stay now.",
    asked=True,
)
SCALED = Kind(
    "scaled", "info", "model scaled", "The number of instances was changed.", _CHANGED, asked=True
)
NOT_SCALED = Kind(
    "not_scaled",
    "error",
    "model was not scaled",
    "The number of instances could not be changed, or not all of them got a worker.",
    {"instances": "how many were asked for", "before": "how many it had before"},
    asked=True,
)
ACCESS_LOG = Kind(
    "access_log",
    "info",
    "access log turned on or off",
    "From now on each request of the model is written to its access log, or is not.",
    {"on": "1: it is"},
    asked=True,
)
UNREGISTERED = Kind(
    "unregistered", "info", "model unregistered", "The model is not served any more.", asked=True
)
LOADED = Kind(
    "loaded", "info", "model loaded", "A model of a model repository is served.", asked=True
)
NOT_LOADED = Kind(
    "not_loaded",
    "error",
    "model of a repository was not loaded",
    "A model of a model repository could not be served.",
    asked=True,
)
UNLOADED = Kind(
    "unloaded",
    "info",
    "model unloaded",
    "A model of a model repository is not served any more.",
    asked=True,
)
RELOADED = Kind(
    "reloaded",
    "info",
    "settings reloaded",
    "The settings were read anew; the reason names those that changed.",
    {"applied": "settings that hold now", "waiting": "settings that need a restart"},
    asked=True,
)
NOT_RELOADED = Kind(
    "not_reloaded",
    "error",
    "settings were not reloaded, the old ones hold",
    "The settings are wrong; the old ones hold.",
    asked=True,
)
STARTED = Kind(
    "started",
    "info",
    "daemon started",
    "The daemon began to work.",
    {"pid": "its process"},
    asked=True,
)
DRAINING = Kind(
    "draining",
    "info",
    "daemon drains",
    "The daemon was told to leave: it is not ready, and takes no registrations.",
    {"settle_s": "seconds that it still takes requests", "stop": "1: it stops then"},
    asked=True,
)
STOPPING = Kind("stopping", "info", "daemon stops", "The daemon was told to stop.", asked=True)
STOPPED = Kind(
    "stopped",
    "info",
    "daemon stopped",
    "The daemon ended in order.",
    {"exit_code": "its exit code"},
    asked=True,
)
UPGRADED = Kind(
    "upgraded",
    "info",
    "daemon upgraded",
    "Another version of the daemon goes on with all that the former one served; the reason names both.",
    {"upgrades": "how often that has been since its start", "models": "how many it serves"},
    asked=True,
)
NOT_UPGRADED = Kind(
    "not_upgraded",
    "error",
    "daemon was not upgraded",
    "Another version of the daemon could not take over; the one that runs goes on.",
    asked=True,
)
SERVER_REPLACED = Kind(
    "server_replaced",
    "info",
    "tritonserver was replaced",
    "Another tritonserver took the place of the one that ran.",
    {"pid": "its process"},
    asked=True,
)
SERVER_NOT_REPLACED = Kind(
    "server_not_replaced",
    "error",
    "tritonserver was not replaced",
    "Another tritonserver did not start; the one that runs serves on.",
    asked=True,
)
