/* A model that tritonserver has loaded. */
#ifndef PYTRITON_BACKEND_PROXY_MODEL_H
#define PYTRITON_BACKEND_PROXY_MODEL_H

#include "base/json.h"
#include "triton/api.h"

#include <stdbool.h>
#include <stdint.h>

/* One version of a loaded model. */
typedef struct {
    TRITONBACKEND_Model *model;
    int refs; /* references held by tritonserver and by proxies */
    char *name;
    char *endpoint;     /* the dispatcher's control socket */
    char *registration; /* key of the registration */
    uint64_t number;    /* version number */
    char *version;      /* sent to the worker with each request if the model has several versions; otherwise NULL */
    char *fixed_error;     /* if not NULL, every request is answered with this error, without a worker */
    bool has_batch_axis;      /* requests have a batch axis */
    bool streams;       /* it may answer a request many times, or at any time */
    bool is_triton_python;       /* a Triton Python model, whose requests carry additional details */
    uint64_t max_sequence_id; /* largest id that its numeric sequence control input can hold; 0 if it has none */
    unsigned waiting;   /* batches that wait for a worker to begin them (streams.c); atomic */
} Model;

/* Read a model's configuration. Texts that it lacks stay NULL. */
void model_read_config(Model *model, Json config, uint64_t version);
/* Drop a reference to a model; NULL is allowed. The last reference frees the model. */
void model_unref(Model *model);

#endif
