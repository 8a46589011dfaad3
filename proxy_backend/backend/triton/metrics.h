/* Custom metrics: what a model in a worker observes appears on tritonserver's /metrics. See proxy_backend/python_proxy/metrics.py.
 */
#ifndef PYTRITON_BACKEND_TRITON_METRICS_H
#define PYTRITON_BACKEND_TRITON_METRICS_H

#include "wire/msgpack.h"

/* The metrics that one proxy has made for its model. They survive its worker. */
typedef struct {
    struct Metric **own;
    size_t count;
    uint64_t logged; /* failed changes that were logged */
} Metrics;

/* Apply the changes of one message, whose updates come next. Changes that Triton refuses are logged and otherwise
 * ignored. Malformed input shows in `updates`.
 */
void metrics_apply(Metrics *metrics, Reader *updates);
/* Delete the metrics that no other proxy holds. */
void metrics_free(Metrics *metrics);

#endif
