/* Reports the server's load in answers of inferences, for load balancers (ORCA: Open Request Cost Aggregation).
 *
 *     request header                        header of the answer
 *     endpoint-load-metrics-format: json    endpoint-load-metrics: JSON {"named_metrics": {"requests_in_flight": 3}}
 *     endpoint-load-metrics-format: text    endpoint-load-metrics: TEXT named_metrics.requests_in_flight=3
 *
 * For TensorRT-LLM models, the report includes the metrics that NVIDIA's frontend reports: kv_cache_utilization and
 * max_token_capacity.
 */
#ifndef PYTRITON_FRONTEND_HTTP_LOAD_REPORT_H
#define PYTRITON_FRONTEND_HTTP_LOAD_REPORT_H

#include "common/slice.h"
#include "core/server.h"

typedef enum { LOAD_REPORT_NONE, LOAD_REPORT_TEXT, LOAD_REPORT_JSON } LoadReport;
/* Maximum size of the header with its line end. */
enum { LOAD_REPORT_ROOM = 224 };

/* Returns the report that a header of a request asks for, or NONE for other headers. */
LoadReport load_report_requested(Slice name, Slice value);
/* Write the header to `at`, which has room for LOAD_REPORT_ROOM bytes. Returns its end. Any thread. */
char *load_report_put(char *at, LoadReport report, Server *server);

#endif
