/* A connection of HTTP/1.1: reads one request after the other, hands each on, and goes on when it has been answered. */
#ifndef PYTRITON_FRONT_HTTP_CONNECTION_H
#define PYTRITON_FRONT_HTTP_CONNECTION_H

#include "http/request.h"
#include "http1/chunks.h"

#include <pthread.h>

typedef enum { READS_HEAD, READS_BODY, READS_CHUNKS } HttpPhase;
typedef enum { AWAITS_NOTHING, AWAITS_HEAD, AWAITS_BODY } HttpAwaited;
/* What there is of an answer: none of it; events, between any two of which something may stand; or else. */
typedef enum { SAYS_NOTHING, SAYS_EVENTS, SAYS_ANSWER } HttpSays;

/* How long a client's requests and chunks are read before others have their turn, however many there are. */
enum { HTTP_TURN_NS = 1000000 };

/* What a connection keeps. */
typedef struct {
    /* The loop's: */
    HttpPhase phase;
    HttpScan scan;
    size_t head_size, needed; /* `needed`: of the request, head and body, where its size is known */
    HttpChunks *chunks;
    Text pending; /* came together with the request before */
    uint64_t seen; /* bytes that had come when the deadline was set */
    HttpAwaited awaited; /* what the deadline is for */
    bool goodbye; /* idle, and the server is about to end */
    bool retiring; /* another process takes this one's place; set under the lock, too */
    /* Guarded by the lock, since answers are written in any thread: */
    pthread_mutex_t lock;
    Call *call; /* that is being read (the loop's), or `busy`: being answered */
    bool busy, writing; /* `writing`: the loop writes the rest of its answer */
    bool missed; /* something may have come meanwhile */
    bool draining, closed; /* `draining`: the next answer is the last */
    HttpSays says;
    uint64_t idle_since; /* clock_ms() of the last answer's end */
} HttpConnection;

/* What this room keeps for each loop. */
typedef struct {
    Calls *calls;
    HttpHead head;
    Target target;
} HttpLoop;

/* NULL: there is no memory. */
HttpLoop *http_loop(Connection *connection, Problem *problem);

/* A whole request has been read, and its head into `loop`: have it answered, here or in another thread (start.c). */
void request_start(Connection *connection, HttpConnection *http, HttpLoop *loop);
/* Have a request answered whose body is as it is meant (routes.c). */
void request_run(HttpRequest *request);
/* What heads may have. */
HttpLimits http_head_limits(const Limits *limits);

/* Read what has come. True: a request was complete, and is being answered, or has been (reading.c). */
bool reading_go_on(Connection *connection);

#endif
