/* Calls in flight, shared by calls.c, which receives from the worker, and call_answers.c, which receives from
 * tritonserver.
 */
#ifndef PYTRITON_CALL_H
#define PYTRITON_CALL_H

#include "calls/call_request.h"
#include "calls/flow.h"
#include "lane/slots.h"

#include <pthread.h>

enum { BUCKETS = 64 };

/* An answer that the worker has not read. */
typedef struct Answer {
    struct Answer *next;
    Slot *slots; /* where its outputs are */
    uint64_t bytes;
    bool final;
} Answer;

/* An answer of tritonserver that the worker has no room for. */
typedef struct Queued {
    struct Queued *next;
    TRITONSERVER_InferenceResponse *response; /* may be NULL */
    uint64_t bytes;
    bool final;
} Queued;

/* A call in flight. `refs`: the table of calls, tritonserver's request, and its responses hold one each. */
typedef struct Call {
    struct Calls *calls;
    struct Call *next; /* the next one in its bucket */
    int64_t id;
    char *model;
    bool stream, occupied; /* `occupied`: the worker is blocked until the call is answered */
    bool ended; /* nothing more is sent */
    unsigned refs, unread;
    uint64_t begun_ns;
    Answer *kept, **last_kept;
    Queued *queue, **last_queued;
    Flow *flow; /* of a stream */
    uint64_t unlooked; /* bytes queued since the last check of available memory */
    TRITONSERVER_InferenceRequest *request;
    uint8_t *inputs;
} Call;

/* The calls of one worker. `refs`: the proxy, the reader, and each call hold one each. */
typedef struct Calls {
    struct Calls *next; /* the proxy's earlier ones */
    Connection *connection;
    Slots slots;
    TRITONSERVER_Server *server;
    char *endpoint, *name; /* the dispatcher's endpoint; this connection's name at the dispatcher */
    pthread_t reader;
    unsigned refs;
    pthread_mutex_t lock; /* guards the following fields and the calls */
    bool retired, heard_of;
    Call *table[BUCKETS];
    size_t count;
    /* Used by the reader only. */
    char *worker;
    Buffer told; /* models that the dispatcher already knows the worker waits for, as MessagePack strings */
    uint64_t looked_ns, told_ns;
} Calls;

void calls_unref(Calls *calls);
void call_unref(Call *call);

#endif
