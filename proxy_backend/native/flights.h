/* What the two threads of streams.c and reader.c share: the batches under way. */
#ifndef PYTRITON_FLIGHTS_H
#define PYTRITON_FLIGHTS_H

#include "flow.h"
#include "metrics.h"
#include "streams.h"
#include "watch.h"

#include <pthread.h>

/* One request of a batch. */
typedef struct {
    Receiver to; /* without a factory: its last answer has been sent */
    uint64_t gone_ns; /* when its client was first seen to have gone; 0: it has not */
    Flow *flow; /* of a stream that another model asked for; else NULL */
    bool cancelled, reschedule;
    bool held; /* the worker makes nothing more for it until its caller has read */
    bool failed; /* also read by the other thread, without the lock */
} Stream;

/* A batch under way. Who sends it and the list of those under way hold it. */
typedef struct Flight {
    struct Flight *next;
    int64_t id;
    int holders, losses;
    int in_row; /* requests of its batch before it, tried each by itself, that lost a worker one after the other */
    bool whole; /* those after it are not tried */
    bool under_way, begun, returned;
    bool answered; /* something has been said to a client of it */
    uint64_t sent_ns;    /* 0: not yet */
    uint64_t overdue_ns; /* 0: never */
    uint32_t held;       /* how many of its requests are */
    uint64_t held_ns;    /* since when */
    uint64_t taken_ns;   /* since when the dispatcher knows it to be overdue; 0: it does not */
    char *failure;       /* of a lost lane: what to answer */
    uint32_t count;
    Stream streams[];
} Flight;

struct Streams {
    Proxy *proxy;
    bool until_returned; /* a batch holds back the next one until BatchReturned, not just BatchBegun */
    /* Guards what follows, the proxy, and sending on the lane. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Flight *flights;
    int64_t under_way, room;
    char *fault; /* how the last lane ended that broke the protocol; NULL: none has since the last batch was sent */
    bool reading; /* there is, or was, a reader: it is to be joined */
    bool ending;
    bool alone; /* tritonserver knows the instance no more: the reader ends the proxy */
    pthread_t reader;
    /* The reader's own. */
    Lane *lane;
    int64_t uncredited;
    uint64_t looked_ns;
    bool ticking;
    Bell *bell;
    uint32_t held; /* requests */
    Metrics metrics;
    Sender sender;
};

/* NULL: there is no memory. Whoever calls holds it. */
Flight *flight_new(TRITONBACKEND_Request **requests, uint32_t count);
/* Say that nothing more comes, with an error to all that have not been answered to the end if there is one. */
void flight_end(Flight *flight, TRITONSERVER_Error_Code code, const char *text);
void flight_let_go(Flight *flight);
void stream_set_failed(Stream *stream);
bool stream_has_failed(const Stream *stream);
/* The last answer to a request has been sent, or tritonserver has it back. */
void stream_close(Stream *stream);
/* Say that no more answers come for a request, which has not been said yet. */
void stream_end(Stream *stream);

/* The thread of a lane: `streams`, until the lane ends. */
void *read_lane(void *streams);

#endif
