/* Batches in flight that may be answered many times. */
#ifndef PYTRITON_BACKEND_STREAMS_FLIGHTS_H
#define PYTRITON_BACKEND_STREAMS_FLIGHTS_H
#include "calls/flow.h"
#include "translation/responses.h"
#include "triton/api.h"

/* One request of a batch. */
typedef struct {
    Receiver to; /* without a factory: its last answer has been sent */
    uint64_t disconnected_ns; /* when its client was first seen to have disconnected; 0: it has not */
    Flow *flow; /* of a stream that another model requested; else NULL */
    bool cancelled, reschedule;
    bool paused; /* the worker produces nothing more for it until its caller has read */
    bool failed; /* also read by the other thread, without the lock */
} Stream;

/* A batch in flight. Its sender and the list of batches in flight hold references. */
typedef struct Flight {
    struct Flight *next;
    int64_t id;
    int refs, lost_workers;
    int consecutive_losses; /* how many earlier requests of its batch, retried individually, lost a worker in a row */
    bool fails_rest; /* those after it are not retried */
    bool is_inflight, begun, returned;
    bool answered; /* a client of it has received something */
    uint64_t received_ns;  /* when tritonserver passed it to the backend */
    uint64_t sent_ns;    /* 0: not yet */
    uint64_t overdue_ns; /* 0: never */
    uint32_t paused_count;       /* the number of its paused requests */
    uint64_t paused_ns;    /* since when */
    uint64_t read_ns;   /* since when the dispatcher knows that it is overdue; 0: it does not */
    char *failure;       /* after a lost lane: the error to answer */
    uint32_t count;
    Stream streams[];
} Flight;

/* Create a batch, with a reference for the caller. NULL without memory. */
Flight *flight_new(const Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count);
/* End all streams of a batch, with an error if there is one; with `names`, the error names the request. */
void flight_end(const Proxy *proxy, Flight *flight, TRITONSERVER_Error_Code code, const char *text, bool names);
void flight_unref(Flight *flight);
void stream_set_failed(Stream *stream);
bool stream_has_failed(const Stream *stream);
/* Forget a request: its last answer has been sent, or tritonserver has it back. */
void stream_close(Stream *stream);
/* End a request's stream unless it has ended. */
void stream_end(Stream *stream);

/* End a request in tritonserver after a delay. Takes the factory over. */
void delayed_close(TRITONBACKEND_ResponseFactory *factory);

#endif
