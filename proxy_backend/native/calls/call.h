/* Calls under way, shared by calls.c, which hears the worker, and call_answers.c, which hears tritonserver. */
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
    Slot *slots; /* its outputs lie there */
    uint64_t bytes;
    bool final;
} Answer;

/* An answer of tritonserver's that the worker has no room for. */
typedef struct Queued {
    struct Queued *next;
    TRITONSERVER_InferenceResponse *response; /* may be NULL */
    uint64_t bytes;
    bool final;
} Queued;

/* A call under way. `refs`: one each of the table of calls, tritonserver's request, and its responses. */
typedef struct Call {
    struct Calls *calls;
    struct Call *next; /* of its bucket */
    int64_t id;
    char *model;
    bool stream, occupied; /* `occupied`: the worker does nothing else meanwhile */
    bool ended; /* nothing more is sent */
    unsigned refs, unread;
    uint64_t begun_ns;
    Answer *kept, **last_kept;
    Queued *queue, **last_queued;
    Flow *flow; /* of a stream */
    uint64_t unlooked; /* bytes queued since the last look at the memory that is left */
    TRITONSERVER_InferenceRequest *request;
    uint8_t *inputs;
} Call;

/* The calls of one worker. `refs`: one each of the proxy, the reader, and each call. */
typedef struct Calls {
    struct Calls *next; /* the proxy's earlier ones */
    Connection *connection;
    Slots slots;
    TRITONSERVER_Server *server;
    char *endpoint, *name; /* of the dispatcher; by which it knows this connection */
    pthread_t reader;
    unsigned refs;
    pthread_mutex_t lock; /* guards the next ones, and what is in calls */
    bool retired, heard_of;
    Call *table[BUCKETS];
    size_t count;
    /* The reader's own. */
    char *worker;
    Buffer told; /* models that the dispatcher knows the worker to wait for: strings of MessagePack */
    uint64_t looked_ns, told_ns;
} Calls;

void calls_unref(Calls *calls);
void call_unref(Call *call);

#endif
