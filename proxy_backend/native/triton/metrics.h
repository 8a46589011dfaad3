/* Custom metrics: what a model in a worker counts appears on tritonserver's own /metrics. See proxy_backend/metrics.py. */
#ifndef PYTRITON_METRICS_H
#define PYTRITON_METRICS_H

#include "wire/msgpack.h"

/* The metrics that one proxy has made for its model. They stay when its worker ends. */
typedef struct {
    struct Metric **held;
    size_t count;
    uint64_t said; /* changes that came to nothing */
} Metrics;

/* Make the changes of one message, whose updates come next; what Triton refuses is said in its log, and nothing else
 * comes of it. What is malformed shows in `updates`. */
void metrics_apply(Metrics *metrics, Reader *updates);
/* Delete the metrics that no other proxy holds. */
void metrics_free(Metrics *metrics);

#endif
