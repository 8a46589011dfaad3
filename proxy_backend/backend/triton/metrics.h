/* Custom metrics: what a model in a worker observes is shown on tritonserver's /metrics. See
 * proxy_backend/python_proxy/metrics.py.
 */
#ifndef PYTRITON_BACKEND_TRITON_METRICS_H
#define PYTRITON_BACKEND_TRITON_METRICS_H

#include "wire/msgpack.h"

/* The metrics that one proxy has created for its model. They outlive its workers. */
typedef struct {
    struct Metric **own;
    size_t count;
    uint64_t logged; /* number of failed changes that were logged */
} Metrics;

/* Apply the changes of one message, which `updates` is positioned at. Changes that Triton refuses are logged and
 * otherwise ignored. Malformed input sets `updates->malformed`.
 */
void metrics_apply(Metrics *metrics, Reader *updates);
/* Drop all metrics. Those that no other proxy holds are deleted. */
void metrics_free(Metrics *metrics);

#endif
