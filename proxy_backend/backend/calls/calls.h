/* Workers' calls to other models. The compiled equivalent of proxy_backend/python_proxy/calls.py. */
#ifndef PYTRITON_BACKEND_CALLS_H
#define PYTRITON_BACKEND_CALLS_H

#include "triton/api.h"

/* The calls of one worker, linked to those of earlier workers that still wait. */
typedef struct Calls Calls;

/* The proxy that makes the calls. */
typedef struct {
    TRITONBACKEND_Model *model;
    const char *model_name;
    const char *endpoint; /* of the dispatcher's control socket */
    const char *proxy;    /* its name at the dispatcher */
} Caller;

/* Serve the calls of the worker that listens for lanes at `lane_path`, until calls_retire. */
void calls_serve(Calls **all, const Caller *caller, const char *lane_path);
/* Make no new calls for the current worker. */
void calls_retire(Calls **all);
/* Wait for the calls in flight, for a limited time. */
void calls_end(Calls **all);

#endif
