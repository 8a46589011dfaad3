/* An instance of a model. */
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

/* Used by one tritonserver thread at a time. */
typedef struct {
    TRITONBACKEND_ModelInstance *instance;
    Model *model;
    Streams *streams; /* NULL: each request of a batch is answered once, while tritonserver waits */
    char *name; /* its name at the dispatcher */
    Control *control;
    Lane *lane; /* NULL: not attached */
    Calls *calls; /* made by the lane's worker, and by earlier workers that still wait for answers */
    char *worker;
    double execution_timeout_s; /* 0: none */
    bool tracing;
    bool has_dispatcher_timeout; /* the lane's time-out was set by the dispatcher, not by the model */
    uint64_t batch;
    Buffer message;   /* reused for the next batch */
    Buffer avoid;     /* workers that wait for the current batch, as MessagePack strings */
    uint32_t avoid_count; /* their number */
} Proxy;

/* Free a proxy that the dispatcher does not know, or no longer knows. */
void proxy_free(Proxy *proxy);
/* Send Detach for a proxy, and free it. */
void proxy_end(Proxy *proxy);

/* All texts are for the client; the caller frees them. */

/* Get a lane unless there is one. Returns NULL, or why there will be no worker. A suspended model wakes up if a batch
 * waits; otherwise there may be neither a lane nor an error.
 */
char *proxy_attach(Proxy *proxy, bool batch);
/* Close the lane. */
void proxy_drop_lane(Proxy *proxy);
/* The facts for a verdict about requests whose worker is lost or overdue (LaneLost in _protocol/messages/proxy.py). */
typedef struct {
    int lost_workers;        /* how many workers were lost with these requests */
    uint32_t requests; /* their number */
    int consecutive_losses; /* how many requests of their batch lost a worker in a row when retried individually */
    bool is_final; /* they cannot be retried */
    bool fails_rest; /* set by the verdict: the rest of their batch fails with them */
    uint64_t read_ns; /* set by proxy_report_overdue: when the worker was first seen to have read them; 0: not yet */
    char *request_id; /* the id of a single request; NULL if there are several. The caller frees it. */
} LossReport;
/* Returns the error for requests whose worker was lost; NULL: try another worker. */
char *proxy_report_loss(Proxy *proxy, LossReport *loss);
/* Ask about a batch that takes too long. `was_read`: the worker has read it. Returns the error; NULL: wait for the
 * returned time, or if `retry`, try another worker.
 */
char *proxy_report_overdue(Proxy *proxy, LossReport *loss, bool was_read, double *wait_s, bool *retry);

#endif
