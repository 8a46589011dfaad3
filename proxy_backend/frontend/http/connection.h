/* An HTTP/1.1 connection: reads one request at a time, passes it on, and continues when it has been answered. */
#ifndef PYTRITON_FRONTEND_HTTP_CONNECTION_H
#define PYTRITON_FRONTEND_HTTP_CONNECTION_H

#include "http/request.h"
#include "http1/chunks.h"

#include <pthread.h>

typedef enum { READS_HEAD, READS_BODY, READS_CHUNKS } HttpPhase;
typedef enum { DEADLINE_NONE, DEADLINE_HEAD, DEADLINE_BODY } HttpDeadline;
/* How much of an answer has been written: nothing; events, with possible comments between them; or other data. */
typedef enum { SENT_NOTHING, SENT_EVENTS, SENT_RESPONSE } HttpSent;

/* How long a client's requests and chunks are read before others get their turn, however many there are. */
enum { HTTP_TURN_NS = 1000000 };

/* The state of a connection. */
typedef struct {
    /* Used by the loop: */
    HttpPhase phase;
    HttpScan scan;
    size_t head_size, needed; /* `needed`: size of the request, head and body, once known */
    HttpChunks *chunks;
    Buffer pending; /* received together with the previous request */
    uint64_t seen; /* bytes received when the deadline was set */
    HttpDeadline deadline_kind; /* the purpose of the deadline */
    bool closes_when_idle; /* idle, and the server is about to end */
    bool retiring; /* another process replaces this one; set under the lock, too */
    /* Guarded by the lock, since any thread may write answers: */
    pthread_mutex_t lock;
    Call *call; /* being read (the loop's), or if `busy`, being answered */
    bool busy, writing; /* `writing`: the loop writes the rest of its answer */
    bool missed; /* data may have arrived during the answer */
    bool draining, closed; /* `draining`: the next answer is the last */
    HttpSent sent_so_far;
    uint64_t idle_since; /* clock_ms() at the end of the last answer */
} HttpConnection;

/* Data of this module per loop. */
typedef struct {
    Calls *calls;
    HttpHead head;
    Target target;
} HttpLoop;

/* NULL without memory. */
HttpLoop *http_loop(Connection *connection, Problem *problem);

/* Answer a request whose body has been decoded (routes.c). */
void request_run(HttpRequest *request);
/* Returns the limits for heads. */
HttpLimits http_head_limits(const Limits *limits);

/* Read available data. Returns true if a complete request is being answered, or has been (request_reader.c). */
bool request_reader_resume(Connection *connection);

#endif
