/* Batches in flight of models that may answer many times. */
#ifndef PYTRITON_BACKEND_STREAMS_FLIGHTS_H
#define PYTRITON_BACKEND_STREAMS_FLIGHTS_H
#include "calls/flow.h"
#include "translation/responses.h"
#include "triton/api.h"

/* One request of a batch. */
typedef struct {
    Receiver to; /* has no factory after the last answer was sent */
    uint64_t disconnected_ns; /* when its client was first found to have disconnected; 0 if it has not */
    Flow *flow; /* flow control if another model makes the request as a stream, otherwise NULL */
    bool cancelled, reschedule;
    bool paused; /* the worker produces nothing for it until its caller has read */
    bool failed; /* another thread reads this without the lock */
} Stream;

/* A batch in flight. References are held by its sender and by the list of batches in flight. */
typedef struct Flight {
    struct Flight *next;
    int64_t id;
    int refs, lost_workers;
    /* number of earlier, individually retried requests of its batch that lost a worker in a row */
    int consecutive_losses;
    bool fails_rest; /* the requests after it in its batch fail with it */
    bool is_inflight, begun, returned;
    bool answered; /* at least one of its clients has received something */
    uint64_t received_ns;  /* when tritonserver passed it to the backend */
    uint64_t sent_ns;    /* 0 until it is sent */
    uint64_t overdue_ns; /* 0 means never */
    uint32_t paused_count;       /* number of paused requests */
    uint64_t paused_ns;    /* when the first of them was paused */
    uint64_t read_ns;   /* when the dispatcher was first told that the batch is overdue; 0 before */
    char *failure;       /* the error to answer, after its lane was lost */
    uint32_t count;
    Stream streams[];
} Flight;

/* Create a batch with a reference for the caller. Returns NULL without memory. */
Flight *flight_new(const Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count);
/* End all streams of a batch, with an error unless `text` is NULL. With `names`, the error contains the id of its
 * request.
 */
void flight_end(const Proxy *proxy, Flight *flight, TRITONSERVER_Error_Code code, const char *text, bool names);
void flight_unref(Flight *flight);
void stream_set_failed(Stream *stream);
bool stream_has_failed(const Stream *stream);
/* Forget a request whose last answer has been sent, or that was returned to tritonserver. */
void stream_close(Stream *stream);
/* End the stream of a request, unless it has already ended. */
void stream_end(Stream *stream);

#endif
