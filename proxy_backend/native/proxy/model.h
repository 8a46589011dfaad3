/* A model as tritonserver has loaded it. */
#ifndef PYTRITON_MODEL_H
#define PYTRITON_MODEL_H

#include "base/json.h"
#include "triton/api.h"

#include <stdbool.h>
#include <stdint.h>

/* One version of a loaded model. */
typedef struct {
    TRITONBACKEND_Model *model;
    int holders; /* tritonserver, and the proxies */
    char *name;
    char *endpoint;     /* of the dispatcher's control socket */
    char *registration; /* which registration this is */
    uint64_t number;    /* of this version */
    char *version;      /* what requests tell the worker, of a model with several; else NULL */
    char *stand_in;     /* what each request is told, where nobody is to be asked; else NULL */
    bool batching;      /* requests have a batch axis */
    bool streams;       /* it may answer many times, or at any time */
    bool details;       /* a Triton Python model: requests carry what only such a one asks for */
    unsigned waiting;   /* batches of streams.c that a worker is to begin; atomic */
} Model;

/* Read a model's configuration; texts that it lacks stay NULL. */
void model_read_config(Model *model, Json config, uint64_t version);
/* Drop a reference to a model, or to NULL. Its last holder frees it. */
void model_unref(Model *model);

#endif
