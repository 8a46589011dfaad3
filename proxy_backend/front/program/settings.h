/* What the dispatcher tells the front: one JSON document, on a descriptor, since secrets are in it.
 *
 *     {"core": "/path/libtritonserver.so",
 *      "libraries": {"nghttp2": "/path or soname", "ssl": ..., "crypto": ..., "z": ...},
 *      "options": [["model-repository", "/path"], ...],             of the core, as tritonserver's command line names them
 *      "response_cache_bytes": 67108864,                            0: there is none
 *      "loops": 1,
 *      "listen": [{"fd": 5, "protocol": "http", "tls": {"certificate": "/path", "key": "/path", "root": "/path", "mutual": true}, "relays": true}, ...],
 *                                                                   "relays": a unix socket for the daemon's own processes, see relay.h
 *      "limits": {"header_bytes": 65536, "idle_s": 75, ...},        see limits.h
 *      "restricted": {"http": [[["infer"], "header", "value"], ...], "grpc": [...]},
 *      "forward": {"http": "pattern", "grpc": "pattern"},
 *      "vertex": {"health": "/path", "predict": "/path", "model": "name"},
 *      "sagemaker": {"model": "name", "folder": "/path", "inference": "infer", "generate" or "generate_stream"},
 *      "held": true,                                                it says that it is not ready, until the dispatcher says otherwise
 *      "waiting": true,                                             clients' connections are accepted when the dispatcher says so
 *      "awaited": {"names": ["name", ...], "coming": ["name", ...], "fd": 9, "wait_s": 60, "most": 1000},
 *                                                                   models that the core does not have yet, and those of them that come soon: awaited.h
 *      "regions_fd": 8,                                             the table of shared memory regions: region_table.h
 *      "ready_fd": 7}                                               it gets a byte when connections are accepted
 *
 * Protocols are http, grpc, metrics, admin, sagemaker and vertex_ai, and handover: a unix socket on which the process takes over connections of the one
 * whose place it takes (handover.h). All but "core" may be missing or null.
 */
#ifndef PYTRITON_FRONT_SETTINGS_H
#define PYTRITON_FRONT_SETTINGS_H

#include "core/awaited.h"
#include "core/options.h"
#include "net/limits.h"
#include "net/tls.h"

typedef struct {
    int fd;
    const char *protocol;
    bool has_tls, relays;
    TlsFiles tls;
} ListenSetting;

/* An API that asks for a header with a value. */
typedef struct {
    const char *api, *header, *value;
} RestrictionSetting;

typedef struct {
    RestrictionSetting *all;
    size_t count;
} RestrictionSettings;

/* Strings are NULL where the document says nothing. All of it stays until the process ends. */
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
    bool held, waiting;
    AwaitedSettings awaited;
    int regions_fd; /* -1: the regions are this process's alone */
    int ready_fd; /* -1: nobody wants to know */
} Settings;

/* Read a descriptor to its end, and close it. */
bool settings_read(int fd, Settings *settings, Problem *problem);
/* The same of a text. */
bool settings_parse(Slice text, Settings *settings, Problem *problem);

#endif
