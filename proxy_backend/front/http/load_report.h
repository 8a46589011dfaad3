/* Reports of the server's load with the answers of inferences, as load balancers ask for them (ORCA: Open Request Cost Aggregation).
 *
 *     endpoint-load-metrics-format: json    asks for
 *     endpoint-load-metrics: JSON {"named_metrics": {"requests_in_flight": 3}}
 *
 *     endpoint-load-metrics-format: text    for
 *     endpoint-load-metrics: TEXT named_metrics.requests_in_flight=3
 *
 * With models of TensorRT-LLM there are the metrics that NVIDIA's frontend reports, too: kv_cache_utilization and max_token_capacity.
 */
#ifndef PYTRITON_FRONT_LOAD_REPORT_H
#define PYTRITON_FRONT_LOAD_REPORT_H

#include "base/slice.h"
#include "core/server.h"

typedef enum { LOAD_REPORT_NONE, LOAD_REPORT_TEXT, LOAD_REPORT_JSON } LoadReport;
/* Of the longest header with its line end. */
enum { LOAD_REPORT_ROOM = 224 };

/* What a header of a request asks for; NONE: nothing, or it is another header. */
LoadReport load_report_asked(Slice name, Slice value);
/* Write the header at `at`, which has LOAD_REPORT_ROOM bytes. Returns its end. Any thread. */
char *load_report_put(char *at, LoadReport report, Server *server);

#endif
