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

/* A batch under way. Who sends it and the list of those under way hold it. */
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

#endif
