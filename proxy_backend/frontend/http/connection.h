/* An HTTP/1.1 connection. It reads one request at a time, passes it on, and continues after the answer. */
#ifndef PYTRITON_FRONTEND_HTTP_CONNECTION_H
#define PYTRITON_FRONTEND_HTTP_CONNECTION_H

#include "http/request.h"
#include "http1/chunks.h"

#include <pthread.h>

typedef enum { READS_HEAD, READS_BODY, READS_CHUNKS } HttpPhase;
typedef enum { DEADLINE_NONE, DEADLINE_HEAD, DEADLINE_BODY } HttpDeadline;
/* What has been written of an answer: nothing; whole events, so that comments may follow; or other data. */
typedef enum { SENT_NOTHING, SENT_EVENTS, SENT_RESPONSE } HttpSent;

/* How long requests and chunks of one client are read before other clients get their turn. */
enum { HTTP_TURN_NS = 1000000 };

/* The state of a connection. */
typedef struct {
    /* Only the loop uses these: */
    HttpPhase phase;
    HttpScan scan;
    size_t head_size, needed; /* `needed` is the size of the request, head and body, once it is known */
    HttpChunks *chunks;
    Buffer pending; /* data that was received together with the previous request */
    uint64_t seen; /* bytes that had been received when the deadline was set */
    HttpDeadline deadline_kind; /* what the deadline is for */
    bool closes_when_idle; /* close the connection as soon as it is idle, since the server is about to end */
    bool retiring; /* another process replaces this one; written with the lock held */
    /* Guarded by the lock, since any thread may write answers: */
    pthread_mutex_t lock;
    Call *call; /* the call that is being read by the loop, or if `busy`, answered */
    bool busy, writing; /* `writing` means that the loop writes the rest of the answer */
    bool missed; /* data may have arrived during the answer */
    /* The next byte may be a late reply to a relay. While the connection is not `busy`, the loop does not need the lock. */
    bool skips_reply;
    bool draining, closed; /* `draining` means that the next answer is the last */
    HttpSent sent_so_far;
    uint64_t idle_since; /* clock_ms() at the end of the last answer */
} HttpConnection;

/* The state that each loop has for its HTTP connections. */
typedef struct {
    Calls *calls;
    HttpHead head;
    Target target;
} HttpLoop;

/* Returns the state of the connection's loop, or NULL without memory. */
HttpLoop *http_loop(Connection *connection, Problem *problem);

/* Refuse the request that is being read and end the connection, since it is unknown where the next request begins. */
void request_refuse(Connection *connection, const HttpConnection *http, Problem *problem);
/* Answer a request whose body has been decoded (routes.c). */
void request_run(HttpRequest *request);

/* Read available data (request_reader.c). Returns true if a complete request is being answered or has been answered. */
bool request_reader_resume(Connection *connection);

#endif
