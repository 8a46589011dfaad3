/* One call to another model, as the worker asks for it, and the request that tritonserver gets. */
#ifndef PYTRITON_CALL_REQUEST_H
#define PYTRITON_CALL_REQUEST_H

#include "connection.h"
#include "flow.h"
#include "triton_calls.h"

/* A Call of pytriton/ipc/calls.py. Its texts lie in the message. */
typedef struct {
    int64_t id, version;
    Text model;
    Reader inputs, outputs; /* each begins with the array */
    Text parameters, request_id;
    Text correlation; /* `start` NULL: it is the number */
    uint64_t correlation_number, flags, timeout_us;
    bool stream;
    Reader chain;
} CallMessage;

/* What went wrong with a call. `text` NULL: nothing; else it is for free(), and `code` the name of Triton's code. */
typedef struct {
    char *text;
    const char *code;
} CallError;

/* Read what follows the tag. False: it is malformed. */
bool call_read(Reader *reader, uint32_t fields, CallMessage *call);

/* Make the request; its inputs are copied into `inputs`, for free() when it is released. `flow`: that of a stream, or NULL. */
CallError request_make(TRITONSERVER_Server *server, Connection *connection, const CallMessage *call, const char *model,
    const Flow *flow, TRITONSERVER_InferenceRequest **request, uint8_t **inputs);

/* The same error, the original freed. `text` is NULL without one. */
CallError call_error_of(TRITONSERVER_Error *error);

/* ── call_chain.c ───────────────────────────────────────────────────────────────────────────────── */

/* Visit the links of a chain: the model and the worker of each. False: there are no more. */
typedef struct {
    Reader reader;
    uint32_t left;
    Text model, worker;
} Links;
Links chain_links(const CallMessage *call);
bool chain_next(Links *links);
/* The value of CHAIN_PARAMETER, for free(). */
char *chain_sealed(const CallMessage *call);
/* Why a call must not be made, for free(); NULL: it may. The dispatcher may be asked. */
char *chain_refused(const CallMessage *call, const char *endpoint);
/* Tell the dispatcher which models a worker has waited for: `count` strings of MessagePack. `proxy`: who tells.
 * `reply`, for buffer_free, has an array of those that it waits for in vain. Returns why, for free(), or NULL. */
char *chain_stuck(
    const char *endpoint, const char *proxy, const char *worker, const Buffer *models, uint32_t count, Buffer *reply);

#endif
