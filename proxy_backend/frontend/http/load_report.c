#include "http/load_report.h"

#include "admin/information.h"
#include "common/clock.h"
#include "calls/call.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* How long the values are used: the core's metrics are a text that takes longer to create the more models there are. */
enum { FRESH_MS = 500 };

typedef struct {
    bool known;
    double utilization, capacity;
} KvCache;

LoadReport load_report_requested(Slice name, Slice value)
{
    if (!slice_is_nocase(name, "endpoint-load-metrics-format"))
        return LOAD_REPORT_NONE;
    return slice_is_nocase(value, "json") ? LOAD_REPORT_JSON
        : slice_is_nocase(value, "text")  ? LOAD_REPORT_TEXT
                                          : LOAD_REPORT_NONE;
}

/* Returns the first value of TensorRT-LLM's block metric of this type, or -1 if there is none. */
static double blocks(const char *metrics, const char *type)
{
    static const char family[] = "\nnv_trt_llm_kv_cache_block_metrics{";
    char label[64];
    snprintf(label, sizeof label, "kv_cache_block_type=\"%s\"", type);
    for (const char *line = strstr(metrics, family); line; line = strstr(line + 1, family)) {
        const char *end = strchr(line + 1, '\n'), *value = strstr(line, "} ");
        const char *found = strstr(line, label);
        if (found && value && found < value && (end == NULL || value < end))
            return strtod(value + 2, NULL);
    }
    return -1;
}

static KvCache read_kv_cache(Server *server)
{
    Buffer text = {0};
    Problem problem = {0};
    KvCache cache = {0};
    const char *metrics = metrics_text(server, &text, &problem) ? buffer_string(&text) : NULL;
    if (metrics) {
        double used = blocks(metrics, "used"), max = blocks(metrics, "max"), tokens = blocks(metrics, "tokens_per");
        if (used >= 0 && max > 0 && tokens >= 0)
            cache = (KvCache){true, used / max, max * tokens};
    }
    problem_clear(&problem);
    buffer_free(&text);
    return cache;
}

/* Returns values that are at most FRESH_MS old, or older ones while another thread reads new ones. */
static KvCache kv_cache(Server *server)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static KvCache last;
    static uint64_t read_ms;
    static bool reading;
    pthread_mutex_lock(&lock);
    bool mine = !reading && (read_ms == 0 || clock_ms() - read_ms >= FRESH_MS);
    reading = reading || mine;
    KvCache found = last;
    pthread_mutex_unlock(&lock);
    if (!mine)
        return found;
    found = read_kv_cache(server);
    pthread_mutex_lock(&lock);
    last = found;
    read_ms = clock_ms();
    reading = false;
    pthread_mutex_unlock(&lock);
    return found;
}

char *load_report_put(char *at, LoadReport report, Server *server)
{
    if (report == LOAD_REPORT_NONE)
        return at;
    bool json = report == LOAD_REPORT_JSON;
    KvCache cache = kv_cache(server);
    char more[128] = "";
    if (cache.known)
        snprintf(more, sizeof more,
            json ? ", \"kv_cache_utilization\": %.6f, \"max_token_capacity\": %.0f"
                 : ", named_metrics.kv_cache_utilization=%.6f, named_metrics.max_token_capacity=%.0f",
            cache.utilization, cache.capacity);
    int size = snprintf(at, LOAD_REPORT_ROOM,
        json ? "endpoint-load-metrics: JSON {\"named_metrics\": {\"requests_in_flight\": %llu%s}}\r\n"
             : "endpoint-load-metrics: TEXT named_metrics.requests_in_flight=%llu%s\r\n",
        (unsigned long long)calls_running(), more);
    return size < LOAD_REPORT_ROOM ? at + size : at;
}
