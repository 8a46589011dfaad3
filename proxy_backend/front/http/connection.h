/* An HTTP/1.1 connection: reads one request at a time, passes it on, and continues when it has been answered. */
#ifndef PYTRITON_FRONT_HTTP_CONNECTION_H
#define PYTRITON_FRONT_HTTP_CONNECTION_H

#include "http/request.h"
#include "http1/chunks.h"

#include <pthread.h>

typedef enum { READS_HEAD, READS_BODY, READS_CHUNKS } HttpPhase;
typedef enum { AWAITS_NOTHING, AWAITS_HEAD, AWAITS_BODY } HttpAwaited;
/* How much of an answer has been written: nothing; events, with possible comments between them; or other data. */
typedef enum { SAYS_NOTHING, SAYS_EVENTS, SAYS_ANSWER } HttpSays;

/* How long a client's requests and chunks are read before others get their turn, however many there are. */
enum { HTTP_TURN_NS = 1000000 };

/* The state of a connection. */
typedef struct {
    /* Used by the loop: */
    HttpPhase phase;
    HttpScan scan;
    size_t head_size, needed; /* `needed`: size of the request, head and body, once known */
    HttpChunks *chunks;
    Text pending; /* received together with the previous request */
    uint64_t seen; /* bytes received when the deadline was set */
    HttpAwaited awaited; /* the purpose of the deadline */
    bool goodbye; /* idle, and the server is about to end */
    bool retiring; /* another process replaces this one; set under the lock, too */
    /* Guarded by the lock, since any thread may write answers: */
    pthread_mutex_t lock;
    Call *call; /* being read (the loop's), or if `busy`, being answered */
    bool busy, writing; /* `writing`: the loop writes the rest of its answer */
    bool missed; /* data may have arrived during the answer */
    bool draining, closed; /* `draining`: the next answer is the last */
    HttpSays says;
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

/* A complete request has been read, and its head into `loop`: answer it, here or in another thread (start.c). */
void request_start(Connection *connection, HttpConnection *http, HttpLoop *loop);
/* Answer a request whose body has been decoded (routes.c). */
void request_run(HttpRequest *request);
/* Returns the limits for heads. */
HttpLimits http_head_limits(const Limits *limits);

/* Read available data. Returns true if a complete request is being answered, or has been (reading.c). */
bool reading_go_on(Connection *connection);

#endif
