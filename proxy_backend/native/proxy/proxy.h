/* An instance of a model. */
#ifndef PYTRITON_PROXY_H
#define PYTRITON_PROXY_H

#include "base/buffer.h"
#include "calls/calls.h"
#include "control/control.h"
#include "lane/lane.h"
#include "proxy/model.h"
#include "triton/api.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct Streams Streams;

/* One thread of tritonserver uses it at a time. */
typedef struct {
    TRITONBACKEND_ModelInstance *instance;
    Model *model;
    Streams *streams; /* NULL: batches are answered once, while tritonserver waits */
    char *name; /* by which the dispatcher knows it */
    Control *control;
    Lane *lane; /* NULL: it has none at the moment */
    Calls *calls; /* made by the lane's worker, and by earlier workers that still wait for theirs */
    char *worker;
    double execution_timeout_s; /* 0: none */
    bool tracing;
    bool waited_on; /* the dispatcher has set the lane's patience, instead of the model */
    uint64_t batch;
    Buffer message;   /* its memory is kept for the next batch */
    Buffer avoid;     /* workers that wait for the batch at hand: strings of MessagePack */
    uint32_t avoided; /* how many they are */
} Proxy;

#endif
