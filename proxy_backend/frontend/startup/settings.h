/* The frontend's settings: one JSON document from the dispatcher. It contains secrets, so it is read from a descriptor.
 *
 *     {"core": "/path/libtritonserver.so",
 *      "libraries": {"nghttp2": "/path or soname", "ssl": ..., "crypto": ..., "z": ...},
 *      "options": [["model-repository", "/path"], ...],             options of the core, named as on tritonserver's command line
 *      "response_cache_bytes": 67108864,                            0 means no cache
 *      "loops": 1,                                                  number of event loops
 *      "listen": [{"fd": 5, "protocol": "http", "tls": {"certificate": "/path", "key": "/path", "root": "/path", "mutual": true}, "relays": true}, ...],
 *                                                                   "relays": this is a unix socket for the daemon's own processes (relay.h)
 *      "limits": {"header_bytes": 65536, "idle_s": 75, ...},        see limits.h
 *      "restricted": {"http": [[["infer"], "header", "value"], ...], "grpc": [...]},
 *      "forward": {"http": "pattern", "grpc": "pattern"},
 *      "vertex": {"health": "/path", "predict": "/path", "model": "name"},
 *      "sagemaker": {"model": "name", "folder": "/path", "inference": "infer", "generate" or "generate_stream"},
 *      "not_ready": true,                                           report not ready until the dispatcher changes that
 *      "not_accepting": true,                                       accept no clients' connections until the dispatcher requests it
 *      "pending_models": {"names": ["name", ...], "loading": ["name", ...], "fd": 9, "wait_s": 60, "max_waiters": 1000},
 *                                                                   models that the core has not loaded, and those of them that are being loaded (pending_models.h)
 *      "routes": {...},                                             paths alongside Triton's API (http/route_table.h)
 *      "regions_fd": 8,                                             the table of shared memory regions (region_table.h)
 *      "ready_fd": 7}                                               receives a byte when connections are accepted
 *
 * The protocols are http, grpc, metrics, admin, sagemaker, vertex_ai, and handover: a unix socket on which the process
 * takes over the connections of the process that it replaces (handover.h). All members except "core" may be missing or
 * null.
 */
#ifndef PYTRITON_FRONTEND_STARTUP_SETTINGS_H
#define PYTRITON_FRONTEND_STARTUP_SETTINGS_H

#include "core/pending_models.h"
#include "core/options.h"
#include "net/limits.h"
#include "net/tls.h"

typedef struct {
    int fd;
    const char *protocol;
    bool has_tls, relays;
    TlsFiles tls;
} ListenSetting;

/* An API whose requests need a header with this value. */
typedef struct {
    const char *api, *header, *value;
} RestrictionSetting;

typedef struct {
    RestrictionSetting *all;
    size_t count;
} RestrictionSettings;

/* The settings. Strings that the document lacks are NULL. They are valid until the process ends. */
typedef struct {
    const char *core;
    const char *nghttp2, *ssl, *crypto, *z;
    Option *options;
    size_t option_count;
    uint64_t loops, response_cache_bytes;
    ListenSetting *listen;
    size_t listen_count;
    Limits limits;
    RestrictionSettings http_restricted, grpc_restricted;
    const char *http_forward, *grpc_forward;
    const char *vertex_health, *vertex_predict, *vertex_model, *sagemaker_model, *sagemaker_folder,
        *sagemaker_inference;
    bool not_ready, not_accepting;
    PendingModelsSettings pending_models;
    Slice routes; /* the document for http/route_table.h; `start` is NULL if there is none */
    int regions_fd; /* -1 if the regions belong to this process alone */
    int ready_fd; /* descriptor to notify when the server is ready, or -1 */
} Settings;

/* Read the settings from a descriptor, and close it. */
bool settings_read(int fd, Settings *settings, Problem *problem);

#endif
