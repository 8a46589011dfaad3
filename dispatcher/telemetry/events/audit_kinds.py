"""The kinds of events that a user requests; they carry the actor (audit events)."""

from __future__ import annotations

from pytriton.dispatcher.telemetry.events.kind import EventKind

_INSTANCES = {"instances": "current number of instances"}
_CHANGED = {**_INSTANCES, "before": "previous number of instances"}

REGISTERED = EventKind(
    "registered",
    "info",
    "model registered",
    "A model was registered and is served.",
    _INSTANCES,
    asked=True,
)
REGISTRATION_FAILED = EventKind(
    "registration_failed",
    "error",
    "model was not registered",
    "A model could not be registered; the attempt was rolled back.",
    asked=True,
)
REPLACED = EventKind(
    "replaced",
    "info",
    "model replaced",
    "A new registration replaced the previous one of the same name.",
    _CHANGED,
    asked=True,
)
REPLACE_FAILED = EventKind(
    "replace_failed",
    "error",
    "model was not replaced",
    "A replacement could not be served; the previous registration keeps serving.",
    asked=True,
)
ROLLED_BACK = EventKind(
    "rolled_back",
    "info",
    "model rolled back",
    "The model was restored to its state before the replacement.",
    _CHANGED,
    asked=True,
)
ROLLBACK_FAILED = EventKind(
    "rollback_failed",
    "error",
    "model was not rolled back",
    "The previous registration could not be served; the current one keeps serving.",
    asked=True,
)
REGISTRATION_CONFIRMED = EventKind(
    "registration_confirmed",
    "info",
    "registration confirmed",
    "A provisional registration, part of a change across nodes, was made permanent.",
    asked=True,
)
SCALED = EventKind(
    "scaled", "info", "model scaled", "The number of instances was changed.", _CHANGED, asked=True
)
SCALE_FAILED = EventKind(
    "scale_failed",
    "error",
    "model was not scaled",
    "The number of instances could not be changed, or not all instances got a worker.",
    {"instances": "requested number of instances", "before": "previous number of instances"},
    asked=True,
)
ACCESS_LOG = EventKind(
    "access_log",
    "info",
    "access log turned on or off",
    "The model's access log was enabled or disabled.",
    {"on": "1 if enabled, otherwise 0"},
    asked=True,
)
UNREGISTERED = EventKind(
    "unregistered", "info", "model unregistered", "The model is no longer served.", asked=True
)
LOADED = EventKind(
    "loaded",
    "info",
    "model loaded",
    "A model was loaded from a model repository and is served.",
    asked=True,
)
REPOSITORY_LOAD_FAILED = EventKind(
    "repository_load_failed",
    "error",
    "model of a repository was not loaded",
    "A model could not be loaded from a model repository.",
    asked=True,
)
UNLOADED = EventKind(
    "unloaded",
    "info",
    "model unloaded",
    "A model from a model repository is no longer served.",
    asked=True,
)
RELOADED = EventKind(
    "reloaded",
    "info",
    "settings reloaded",
    "The settings were reloaded; the reason lists those that changed.",
    {"applied": "settings applied", "waiting": "settings that take effect after a restart"},
    asked=True,
)
RELOAD_FAILED = EventKind(
    "reload_failed",
    "error",
    "settings were not reloaded; the old ones stay in effect",
    "The new settings are invalid; the old ones stay in effect.",
    asked=True,
)
STARTED = EventKind(
    "started",
    "info",
    "daemon started",
    "The daemon started.",
    {"pid": "process id of the daemon"},
    asked=True,
)
DRAINING = EventKind(
    "draining",
    "info",
    "daemon draining",
    "The daemon is draining: it reports not ready and refuses registrations.",
    {
        "settle_s": "seconds for which it still accepts requests",
        "stop": "1 if it stops afterwards, otherwise 0",
    },
    asked=True,
)
STOPPING = EventKind(
    "stopping", "info", "daemon stopping", "The daemon was asked to stop.", asked=True
)
STOPPED = EventKind(
    "stopped",
    "info",
    "daemon stopped",
    "The daemon shut down gracefully.",
    {"exit_code": "exit code of the daemon"},
    asked=True,
)
UPGRADED = EventKind(
    "upgraded",
    "info",
    "daemon upgraded",
    "Another version of the daemon took over everything that the previous one served; the reason names both.",
    {"upgrades": "number of upgrades since the start", "models": "number of models served"},
    asked=True,
)
UPGRADE_FAILED = EventKind(
    "upgrade_failed",
    "error",
    "daemon was not upgraded",
    "Another version of the daemon could not take over; the running one continues.",
    asked=True,
)
SERVER_REPLACED = EventKind(
    "server_replaced",
    "info",
    "tritonserver was replaced",
    "Another tritonserver replaced the running one.",
    {"pid": "process id of the new tritonserver"},
    asked=True,
)
SERVER_REPLACE_FAILED = EventKind(
    "server_replace_failed",
    "error",
    "tritonserver was not replaced",
    "The replacement for tritonserver did not start; the running one keeps serving.",
    asked=True,
)
