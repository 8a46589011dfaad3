/* An instance of a model, attached to at most one worker. */
#ifndef PYTRITON_BACKEND_PROXY_H
#define PYTRITON_BACKEND_PROXY_H
#include "common/buffer.h"
#include "calls/calls.h"
#include "control/control.h"
#include "lane/lane.h"
#include "proxy/model.h"
#include "triton/api.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct Streams Streams;

/* Only one thread of tritonserver at a time uses an instance. */
typedef struct {
    TRITONBACKEND_ModelInstance *instance;
    Model *model;
    Streams *streams; /* NULL if each request of a batch is answered exactly once, while tritonserver waits */
    char *name; /* name under which the dispatcher knows it */
    Control *control;
    Lane *lane; /* NULL if it is not attached */
    Calls *calls; /* calls made by the lane's worker, and by earlier workers that are still waiting for answers */
    char *worker;
    double execution_timeout_s; /* 0 if there is none */
    bool tracing;
    bool has_dispatcher_timeout; /* the lane's time-out was set by the dispatcher instead of the model */
    uint64_t batch;
    Buffer message;   /* reused for each batch */
    Buffer avoid;     /* workers that are waiting for the current batch, as MessagePack strings */
    uint32_t avoid_count; /* number of workers in `avoid` */
} Proxy;

/* Free a proxy that is not, or no longer, known to the dispatcher. */
void proxy_free(Proxy *proxy);
/* Tell the dispatcher that the proxy ends (Detach), and free the proxy. */
void proxy_end(Proxy *proxy);

/* The functions below return errors for clients, for free(). */

/* Get a lane unless there already is one. Returns NULL, or why there will be no worker. With `batch`, a suspended
 * model is resumed; without it, the proxy of a suspended model gets neither a lane nor an error.
 */
char *proxy_attach(Proxy *proxy, bool batch);
/* Close the lane. */
void proxy_drop_lane(Proxy *proxy);
/* What the dispatcher needs to know about requests whose worker was lost or is overdue, and parts of its verdict
 * (LaneLost in _protocol/messages/proxy.py).
 */
typedef struct {
    int lost_workers;        /* number of workers that were lost with these requests */
    uint32_t requests; /* number of requests */
    /* number of requests of their batch that lost a worker in a row while being retried individually */
    int consecutive_losses;
    bool is_final; /* the requests cannot be retried */
    bool fails_rest; /* set by the verdict: the rest of their batch fails with them */
    /* set by proxy_report_overdue: when the worker was first known to have read the requests; 0 before */
    uint64_t read_ns;
    char *request_id; /* id of the request if there is only one, otherwise NULL; the caller frees it */
} LossReport;
/* Report that a worker was lost. Returns the error to answer, or NULL to try another worker. */
char *proxy_report_loss(Proxy *proxy, LossReport *loss);
/* Report a batch that takes too long. `was_read` means that the worker has read it. Returns the error to answer, or
 * NULL: then wait for `wait_s` more seconds, or try another worker if `retry` is set.
 */
char *proxy_report_overdue(Proxy *proxy, LossReport *loss, bool was_read, double *wait_s, bool *retry);

#endif
