/* A model as tritonserver has loaded it. */
#ifndef PYTRITON_BACKEND_PROXY_MODEL_H
#define PYTRITON_BACKEND_PROXY_MODEL_H

#include "base/json.h"
#include "triton/api.h"

#include <stdbool.h>
#include <stdint.h>

/* One version of a loaded model. */
typedef struct {
    TRITONBACKEND_Model *model;
    int refs; /* number of references: tritonserver and the proxies */
    char *name;
    char *endpoint;     /* of the dispatcher's control socket */
    char *registration; /* the registration's key */
    uint64_t number;    /* of this version */
    char *version;      /* models with several versions pass it to the worker with each request; else NULL */
    char *fixed_error;     /* the answer to every request without asking a worker; else NULL */
    bool has_batch_axis;      /* requests have a batch axis */
    bool streams;       /* it may answer many times, or at any time */
    bool is_triton_python;       /* a Triton Python model: its requests carry details that no other model uses */
    uint64_t max_sequence_id; /* largest id that its numeric sequence control input holds; 0: it has none */
    unsigned waiting;   /* batches that wait until a worker begins them (streams.c); atomic */
} Model;

/* Read a model's configuration; missing texts stay NULL. */
void model_read_config(Model *model, Json config, uint64_t version);
/* Drop a reference to a model, or to NULL. The last reference frees it. */
void model_unref(Model *model);

#endif
