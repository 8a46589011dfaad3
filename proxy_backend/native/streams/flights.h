/* Batches under way that may be answered many times. */
#ifndef PYTRITON_FLIGHTS_H
#define PYTRITON_FLIGHTS_H

#include "calls/flow.h"
#include "translation/responses.h"

/* One request of a batch. */
typedef struct {
    Receiver to; /* without a factory: its last answer has been sent */
    uint64_t gone_ns; /* when its client was first seen to have gone; 0: it has not */
    Flow *flow; /* of a stream that another model asked for; else NULL */
    bool cancelled, reschedule;
    bool held; /* the worker makes nothing more for it until its caller has read */
    bool failed; /* also read by the other thread, without the lock */
} Stream;

/* A batch under way. Its sender and the list of batches under way hold references. */
typedef struct Flight {
    struct Flight *next;
    int64_t id;
    int holders, losses;
    int in_row; /* requests of its batch before it, tried each by itself, that lost a worker one after the other */
    bool whole; /* those after it are not tried */
    bool under_way, begun, returned;
    bool answered; /* something has been said to a client of it */
    uint64_t handed_ns;  /* when tritonserver handed it over */
    uint64_t sent_ns;    /* 0: not yet */
    uint64_t overdue_ns; /* 0: never */
    uint32_t held;       /* how many of its requests are */
    uint64_t held_ns;    /* since when */
    uint64_t taken_ns;   /* since when the dispatcher knows it to be overdue; 0: it does not */
    char *failure;       /* of a lost lane: what to answer */
    uint32_t count;
    Stream streams[];
} Flight;

/* A new batch, with a reference for the caller. NULL: there is no memory. */
Flight *flight_new(const Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count);
/* End all streams of a batch, with an error if there is one; with `names`, it names the request. */
void flight_end(const Proxy *proxy, Flight *flight, TRITONSERVER_Error_Code code, const char *text, bool names);
void flight_let_go(Flight *flight);
void stream_set_failed(Stream *stream);
bool stream_has_failed(const Stream *stream);
/* Forget a request: its last answer has been sent, or tritonserver has it back. */
void stream_close(Stream *stream);
/* End the stream of a request that has not ended yet. */
void stream_end(Stream *stream);

#endif
