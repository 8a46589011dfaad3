#include "tracing/tracing.h"

#include "common/clock.h"
#include "tracing/otlp.h"
#include "tracing/trace_file.h"
#include "tracing/trace_record.h"
#include "tracing/settings.h"

#include <stdlib.h>

struct Tracing {
    bool any; /* some request can be traced */
    pthread_mutex_t lock; /* guards the fields below */
    TraceSettings settings;
    TraceFile file;
    Otlp *otlp;
};

Tracing *tracing_new(Server *server, Problem *problem)
{
    Tracing *tracing = calloc(1, sizeof *tracing);
    if (tracing == NULL || pthread_mutex_init(&tracing->lock, NULL) != 0) {
        free(tracing);
        problem_no_memory(problem);
        return NULL;
    }
    tracing->file.fd = -1;
    bool right = trace_settings_parse(&tracing->settings, buffer_slice(&server->options.trace_config), problem);
    if (right && tracing->settings.opentelemetry)
        right = (tracing->otlp = otlp_new(&tracing->settings, problem)) != NULL;
    if (!right) {
        tracing_free(tracing);
        return NULL;
    }
    tracing->file.path = tracing->settings.file;
    tracing->any = trace_settings_any(&tracing->settings);
    return tracing;
}

void tracing_free(Tracing *tracing)
{
    if (tracing == NULL)
        return;
    otlp_free(tracing->otlp);
    trace_file_close(&tracing->file);
    trace_settings_free(&tracing->settings);
    pthread_mutex_destroy(&tracing->lock);
    free(tracing);
}

TraceRecord *tracing_begin(
    Tracing *tracing, const char *model, TraceHeaders headers, TRITONSERVER_InferenceTrace **trace)
{
    *trace = NULL;
    if (!tracing_any(tracing))
        return NULL;
    int64_t frequency;
    bool opentelemetry = tracing->settings.opentelemetry;
    pthread_mutex_lock(&tracing->lock);
    unsigned level =
        trace_settings_sample(&tracing->settings, model, opentelemetry && *headers.parent != '\0', &frequency);
    pthread_mutex_unlock(&tracing->lock);
    TraceRecord *record = level ? trace_record_new(tracing, opentelemetry, level, headers, trace) : NULL;
    if (record)
        record->frequency = frequency;
    return record;
}

bool tracing_any(const Tracing *tracing)
{
    return __atomic_load_n(&tracing->any, __ATOMIC_ACQUIRE);
}

void tracing_take(Tracing *tracing, TraceRecord *record)
{
    record->ended_ns = clock_ns();
    if (record->opentelemetry) {
        otlp_put(tracing->otlp, record);
        return;
    }
    if (!record->entries.failed) {
        pthread_mutex_lock(&tracing->lock);
        trace_file_put(&tracing->file, buffer_slice(&record->entries), record->frequency);
        pthread_mutex_unlock(&tracing->lock);
    }
    trace_record_free(record);
}

bool tracing_read(Tracing *tracing, Slice model, Buffer *json, Problem *problem)
{
    pthread_mutex_lock(&tracing->lock);
    bool written = trace_settings_write(&tracing->settings, model, json, problem);
    pthread_mutex_unlock(&tracing->lock);
    return written;
}

bool tracing_change(Tracing *tracing, Slice model, const TraceChange *changes, size_t count, Problem *problem)
{
    pthread_mutex_lock(&tracing->lock);
    bool changed = trace_settings_apply(&tracing->settings, model, changes, count, problem);
    __atomic_store_n(&tracing->any, trace_settings_any(&tracing->settings), __ATOMIC_RELEASE);
    pthread_mutex_unlock(&tracing->lock);
    return changed;
}
