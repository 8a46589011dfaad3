/* An instance of a model. */
#ifndef PYTRITON_BACKEND_PROXY_H
#define PYTRITON_BACKEND_PROXY_H
#include "base/buffer.h"
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

#endif
