/* Calls that workers make to other models. */
#ifndef PYTRITON_BACKEND_CALLS_H
#define PYTRITON_BACKEND_CALLS_H

#include "triton/api.h"

/* The calls of one worker, linked to those of earlier workers that are still in flight. */
typedef struct Calls Calls;

/* The proxy for which calls are made. */
typedef struct {
    TRITONBACKEND_Model *model;
    const char *model_name;
    const char *endpoint; /* the dispatcher's control socket */
    const char *proxy;    /* name under which the dispatcher knows the proxy */
} Caller;

/* Serve the calls of the worker that listens for lanes at `lane_path`, until calls_retire. */
void calls_serve(Calls **all, const Caller *caller, const char *lane_path);
/* Stop starting calls for the current worker. Calls in flight continue. */
void calls_retire(Calls **all);
/* Wait for the calls in flight, up to a time limit. */
void calls_end(Calls **all);

#endif
