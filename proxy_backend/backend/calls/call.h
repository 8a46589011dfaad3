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

/* An answer that the worker has not read yet. */
typedef struct Answer {
    struct Answer *next;
    Slot *slots; /* slots that contain its outputs */
    uint64_t bytes;
    bool final;
} Answer;

/* An answer that waits because the worker has too many unread ones. */
typedef struct QueuedAnswer {
    struct QueuedAnswer *next;
    TRITONSERVER_InferenceResponse *response; /* may be NULL */
    uint64_t bytes;
    bool final;
} QueuedAnswer;

/* A call in flight. References are held by the table of calls, by tritonserver for the request, and for its responses.
 */
typedef struct Call {
    struct Calls *calls;
    struct Call *next; /* next call in the same bucket */
    int64_t id;
    char *model;
    bool stream, blocks_worker; /* `blocks_worker`: the worker does nothing else until the call is answered */
    bool ended; /* no further answers are sent */
    unsigned refs, unread;
    uint64_t begun_ns;
    Answer *unread_head, **unread_tail;
    QueuedAnswer *queue_head, **queue_tail;
    Flow *flow; /* flow control of a stream; NULL for other calls */
    uint64_t unchecked_bytes; /* bytes queued since available memory was last checked */
    TRITONSERVER_InferenceRequest *request;
    uint8_t *inputs;
} Call;

/* The calls of one worker. References are held by the proxy, the reader thread, and each call. */
typedef struct Calls {
    struct Calls *next; /* calls of the proxy's previous worker */
    CallConnection *connection;
    Slots slots;
    TRITONSERVER_Server *server;
    char *endpoint, *name; /* the dispatcher's control socket, and the name under which it knows this proxy */
    pthread_t reader;
    unsigned refs;
    pthread_mutex_t lock; /* guards the fields below and all calls */
    bool retired, has_made_calls;
    Call *table[CALL_BUCKETS];
    size_t count;
    /* Only the reader thread uses these. */
    char *worker;
    /* models that the dispatcher already knows the worker is waiting for, as MessagePack strings */
    Buffer reported_models;
    uint64_t checked_ns, reported_ns;
} Calls;

void calls_unref(Calls *calls);
void call_unref(Call *call);

/* Send the request to tritonserver, which answers in its own threads. The caller must not hold the lock. */
CallError call_start(Call *call);

/* The caller of these functions holds the lock. */
/* End a call, with an error unless `text` is NULL. Answers that arrive later are discarded. */
void call_end(Call *call, const char *text, const char *code);
/* Ask the called model to stop. Answers that it sends nevertheless are forwarded. */
void call_cancel(Call *call);
/* End a call as call_end does, and cancel its request. */
void call_drop(Call *call, const char *text, const char *code);
/* Free the oldest answer after the worker has read it. Returns false if there is none. Sets `final` if the call is
 * complete.
 */
bool call_release_oldest(Call *call, bool *final);
/* Discard all answers of a call because the worker is gone. */
void call_discard(Call *call);

enum { MAX_TEXT_BYTES = 1 << 15 };

#endif
