/* Calls in flight, shared by calls.c, which receives from the worker, and call.c, which receives from
 * tritonserver.
 */
#ifndef PYTRITON_BACKEND_CALLS_CALL_H
#define PYTRITON_BACKEND_CALLS_CALL_H
#include "calls/call_request.h"
#include "calls/flow.h"
#include "lane/slots.h"

#include <pthread.h>

enum { CALL_BUCKETS = 64 };

/* An answer that the worker has not read. */
typedef struct Answer {
    struct Answer *next;
    Slot *slots; /* where its outputs are */
    uint64_t bytes;
    bool final;
} Answer;

/* An answer of tritonserver that the worker has no room for. */
typedef struct QueuedAnswer {
    struct QueuedAnswer *next;
    TRITONSERVER_InferenceResponse *response; /* may be NULL */
    uint64_t bytes;
    bool final;
} QueuedAnswer;

/* A call in flight. `refs`: the table of calls, tritonserver's request, and its responses hold one each. */
typedef struct Call {
    struct Calls *calls;
    struct Call *next; /* the next one in its bucket */
    int64_t id;
    char *model;
    bool stream, blocks_worker; /* `blocks_worker`: the worker is blocked until the call is answered */
    bool ended; /* nothing more is sent */
    unsigned refs, unread;
    uint64_t begun_ns;
    Answer *unread_head, **unread_tail;
    QueuedAnswer *queue_head, **queue_tail;
    Flow *flow; /* of a stream */
    uint64_t unchecked_bytes; /* bytes queued since the last check of available memory */
    TRITONSERVER_InferenceRequest *request;
    uint8_t *inputs;
} Call;

/* The calls of one worker. `refs`: the proxy, the reader, and each call hold one each. */
typedef struct Calls {
    struct Calls *next; /* the proxy's earlier ones */
    CallConnection *connection;
    Slots slots;
    TRITONSERVER_Server *server;
    char *endpoint, *name; /* the dispatcher's endpoint; this connection's name at the dispatcher */
    pthread_t reader;
    unsigned refs;
    pthread_mutex_t lock; /* guards the following fields and the calls */
    bool retired, has_made_calls;
    Call *table[CALL_BUCKETS];
    size_t count;
    /* Used by the reader only. */
    char *worker;
    Buffer reported_models; /* models that the dispatcher already knows the worker waits for, as MessagePack strings */
    uint64_t checked_ns, reported_ns;
} Calls;

void calls_unref(Calls *calls);
void call_unref(Call *call);

/* Pass a request to tritonserver; its answers go to the worker. The caller must not hold the lock. */
CallError call_start(Call *call);

/* With the lock held: */
/* End a call, with an error unless `text` is NULL. Later answers are discarded. */
void call_end(Call *call, const char *text, const char *code);
/* Ask the model of a call to stop; answers that it still sends are passed on. */
void call_cancel(Call *call);
/* End a call as call_end does, and cancel it in tritonserver. */
void call_drop(Call *call, const char *text, const char *code);
/* Release the oldest answer, which the worker has read. Returns false if there was none. `final`: it was the last
 * one.
 */
bool call_release_oldest(Call *call, bool *final);
/* Drop all answers of a call: the worker is gone. */
void call_discard(Call *call);

enum { MAX_TEXT_BYTES = 1 << 15 };

#endif
