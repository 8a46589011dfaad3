/* Custom metrics of models. Metrics are global in tritonserver, so proxies that update the same metric share it. It is
 * deleted with its last holder. So a counter keeps its value when another worker takes over.
 */
#define _GNU_SOURCE
#include "triton/metrics.h"

#include "base/strings.h"
#include "triton/api.h"
#include "triton/errors.h"
#include "wire/protocol.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Maximum total size of the texts of a proxy's metrics. They stay in memory for as long as the model. */
enum { MAX_TEXT_BYTES = 1 << 16 };
/* Maximum number of log lines of a proxy about failed changes. */
enum { MAX_LOGGED = 64 };

typedef struct Family {
    struct Family *next;
    TRITONSERVER_MetricFamily *family;
    char *name;
    int kind;
    int metrics;
} Family;

typedef struct Metric {
    struct Metric *next;
    TRITONSERVER_Metric *metric;
    Family *family;
    uint8_t *labels; /* as encoded by the worker */
    size_t labels_size;
    int holders;
} Metric;

/* A decoded MetricUpdate of pytriton/_protocol/lanes/lane_messages.py. */
typedef struct {
    char *family, *description;
    int kind;
    char *labels[2 * MAX_LABELS];
    uint32_t label_count;
    const uint8_t *labels_start;
    size_t labels_size;
    bool has_buckets;
    double buckets[MAX_BUCKETS];
    uint32_t bucket_count;
    Slice change;
    double value;
} Update;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Family *families;
static Metric *all_metrics;

static const char *const kinds[KIND_COUNT] = {"COUNTER", "GAUGE", "HISTOGRAM"};

/* ── reading ────────────────────────────────────────────────────────────────────────────────────── */

static char *get_copy(Reader *reader)
{
    char *copy = strdup_slice(msgpack_get_text(reader));
    reader->malformed |= copy == NULL;
    return copy;
}

static void get_labels(Reader *reader, Update *update)
{
    update->labels_start = reader->next;
    uint32_t count = msgpack_get_map(reader);
    reader->malformed |= count > MAX_LABELS;
    for (size_t i = 0; i < count && !reader->malformed; i++) {
        update->labels[2 * i] = get_copy(reader);
        update->labels[2 * i + 1] = get_copy(reader);
        update->label_count++;
    }
    update->labels_size = (size_t)(reader->next - update->labels_start);
}

static void get_buckets(Reader *reader, Update *update)
{
    update->has_buckets = !msgpack_get_nil(reader);
    if (!update->has_buckets)
        return;
    update->bucket_count = msgpack_get_array(reader);
    reader->malformed |= update->bucket_count > MAX_BUCKETS;
    for (uint32_t i = 0; i < update->bucket_count && !reader->malformed; i++)
        update->buckets[i] = msgpack_get_double(reader);
}

static void get_update(Reader *reader, Update *update)
{
    uint32_t fields = msgpack_get_array(reader);
    update->family = get_copy(reader);
    update->description = get_copy(reader);
    Slice kind = msgpack_get_text(reader);
    for (update->kind = 0; update->kind < KIND_COUNT && !slice_is(kind, kinds[update->kind]); update->kind++)
        ;
    get_labels(reader, update);
    if (fields > METRIC_UPDATE_buckets)
        get_buckets(reader, update);
    if (fields > METRIC_UPDATE_change)
        update->change = msgpack_get_text(reader);
    if (fields > METRIC_UPDATE_value)
        update->value = msgpack_get_double(reader);
    msgpack_skip_rest(reader, fields, fields < METRIC_UPDATE_SIZE ? fields : METRIC_UPDATE_SIZE);
}

static void free_update(Update *update)
{
    free(update->family);
    free(update->description);
    for (size_t i = 0; i < sizeof update->labels / sizeof *update->labels; i++)
        free(update->labels[i]);
}

/* ── families and metrics, with the lock held ───────────────────────────────────────────────────── */

static TRITONSERVER_Error *get_family(const Update *update, Family **family)
{
    for (*family = families; *family; *family = (*family)->next)
        if (strcmp((*family)->name, update->family) == 0)
            break;
    if (*family)
        return (*family)->kind == update->kind
            ? NULL
            : TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, "a family with this name but another kind already exists");
    if (update->kind >= KIND_COUNT)
        return TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, "unknown kind of metric");
    if (strncmp(update->family, TRITONS_METRICS, strlen(TRITONS_METRICS)) == 0)
        return TRITONSERVER_ErrorNew(
            ERROR_INVALID_ARG, "names that begin with " TRITONS_METRICS " are reserved for tritonserver");
    Family *made = calloc(1, sizeof *made);
    char *name = strdup_printf("%s", update->family);
    TRITONSERVER_Error *error = made
        ? TRITONSERVER_MetricFamilyNew(&made->family, update->kind, name, update->description)
        : TRITONSERVER_ErrorNew(ERROR_INTERNAL, "out of memory");
    if (made == NULL || error) {
        free(made);
        free(name);
        return error;
    }
    made->name = name;
    made->kind = update->kind;
    made->next = families;
    *family = families = made;
    return NULL;
}

static void drop_family(Family *family)
{
    Family **link = &families;
    if (family->metrics)
        return;
    while (*link != family)
        link = &(*link)->next;
    *link = family->next;
    triton_error_consume(TRITONSERVER_MetricFamilyDelete(family->family));
    free(family->name);
    free(family);
}

/* Returns why the metric of an update must not be created, or NULL. */
static const char *metric_fault(const Metrics *metrics, const Update *update)
{
    if (metrics->count == MAX_METRICS)
        return "this instance has too many metrics: labels have too many values";
    if (strlen(update->family) + strlen(update->description) + update->labels_size > MAX_TEXT_BYTES)
        return "its name, description and labels have more than 64 KiB";
    for (size_t i = 0; i < update->label_count && update->kind == KIND_HISTOGRAM; i++)
        if (strcmp(update->labels[2 * i], "le") == 0)
            return "the label 'le' is reserved for a histogram's buckets";
    return NULL;
}

static TRITONSERVER_Error *new_metric(const Update *update, Family *family, TRITONSERVER_Metric **metric)
{
    TRITONSERVER_Parameter *labels[MAX_LABELS + 1] = {0};
    TRITONSERVER_MetricArgs *arguments = NULL;
    TRITONSERVER_Error *error = NULL;
    const TRITONSERVER_Parameter **given = (const TRITONSERVER_Parameter **)labels;
    for (size_t i = 0; i < update->label_count; i++)
        labels[i] = TRITONSERVER_ParameterNew(update->labels[2 * i], PARAMETER_STRING, update->labels[2 * i + 1]);
    if (update->has_buckets) {
        error = TRITONSERVER_MetricArgsNew(&arguments);
        if (error == NULL)
            error = TRITONSERVER_MetricArgsSetHistogram(arguments, update->buckets, update->bucket_count);
        if (error == NULL)
            error = TRITONSERVER_MetricNewWithArgs(metric, family->family, given, update->label_count, arguments);
        if (arguments)
            triton_error_consume(TRITONSERVER_MetricArgsDelete(arguments));
    } else {
        error = TRITONSERVER_MetricNew(metric, family->family, given, update->label_count);
    }
    for (uint32_t i = 0; i < update->label_count; i++)
        TRITONSERVER_ParameterDelete(labels[i]);
    return error;
}

static bool is_same(const Metric *metric, const Update *update)
{
    return strcmp(metric->family->name, update->family) == 0 && metric->family->kind == update->kind &&
        metric->labels_size == update->labels_size &&
        memcmp(metric->labels, update->labels_start, update->labels_size) == 0;
}

static TRITONSERVER_Error *make_metric(const Update *update, Metric **metric)
{
    Family *family;
    TRITONSERVER_Error *error = get_family(update, &family);
    if (error)
        return error;
    Metric *made = calloc(1, sizeof *made);
    uint8_t *labels = malloc(update->labels_size);
    error = made && labels ? new_metric(update, family, &made->metric)
                           : TRITONSERVER_ErrorNew(ERROR_INTERNAL, "out of memory");
    if (made == NULL || labels == NULL || error) {
        free(made);
        free(labels);
        drop_family(family);
        return error;
    }
    made->labels = memcpy(labels, update->labels_start, update->labels_size);
    made->labels_size = update->labels_size;
    made->family = family;
    made->next = all_metrics;
    family->metrics++;
    *metric = all_metrics = made;
    return NULL;
}

static void drop_metric(Metric *metric)
{
    Metric **link = &all_metrics;
    if (--metric->holders > 0)
        return;
    while (*link != metric)
        link = &(*link)->next;
    *link = metric->next;
    triton_error_consume(TRITONSERVER_MetricDelete(metric->metric));
    metric->family->metrics--;
    drop_family(metric->family);
    free(metric->labels);
    free(metric);
}

/* Find or create the metric of an update, and make the proxy hold it. */
static TRITONSERVER_Error *get_metric(Metrics *metrics, const Update *update, Metric **metric)
{
    for (size_t i = 0; i < metrics->count; i++) {
        *metric = metrics->own[i];
        if (is_same(*metric, update))
            return NULL;
    }
    const char *refusal = metric_fault(metrics, update);
    if (refusal)
        return TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, refusal);
    for (*metric = all_metrics; *metric; *metric = (*metric)->next)
        if (is_same(*metric, update))
            break;
    Metric **own = realloc(metrics->own, (metrics->count + 1) * sizeof *own);
    if (own == NULL)
        return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "out of memory");
    metrics->own = own;
    TRITONSERVER_Error *error = *metric ? NULL : make_metric(update, metric);
    if (error || *metric == NULL)
        return error;
    (*metric)->holders++;
    own[metrics->count++] = *metric;
    return NULL;
}

/* Drop a metric that a worker has deleted. Its family is deleted with its last metric. */
static void release_metric(Metrics *metrics, const Update *update)
{
    for (size_t i = 0; i < metrics->count; i++) {
        if (!is_same(metrics->own[i], update))
            continue;
        drop_metric(metrics->own[i]);
        metrics->own[i] = metrics->own[--metrics->count];
        return;
    }
}

/* ── what a proxy calls ─────────────────────────────────────────────────────────────────────────── */

static void apply(Metrics *metrics, const Update *update)
{
    Metric *known = NULL;
    TRITONSERVER_Error *error = NULL;
    pthread_mutex_lock(&lock);
    if (slice_is(update->change, "delete"))
        release_metric(metrics, update);
    else
        error = get_metric(metrics, update, &known);
    TRITONSERVER_Metric *metric = error == NULL && known ? known->metric : NULL;
    if (metric && slice_is(update->change, "increment"))
        error = TRITONSERVER_MetricIncrement(metric, update->value);
    else if (metric && slice_is(update->change, "set"))
        error = TRITONSERVER_MetricSet(metric, update->value);
    else if (metric && slice_is(update->change, "observe"))
        error = TRITONSERVER_MetricObserve(metric, update->value);
    pthread_mutex_unlock(&lock);
    if (error && metrics->logged++ < MAX_LOGGED)
        log_error("custom metric %.200s: %s", update->family, TRITONSERVER_ErrorMessage(error));
    if (error)
        TRITONSERVER_ErrorDelete(error);
}

void metrics_apply(Metrics *metrics, Reader *updates)
{
    uint32_t count = msgpack_get_array(updates);
    Update *update = malloc(sizeof *update);
    updates->malformed |= update == NULL;
    for (uint32_t i = 0; i < count && !updates->malformed; i++) {
        memset(update, 0, sizeof *update);
        update->change = (Slice){"", 0};
        get_update(updates, update);
        if (!updates->malformed)
            apply(metrics, update);
        free_update(update);
    }
    free(update);
}

void metrics_free(Metrics *metrics)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < metrics->count; i++)
        drop_metric(metrics->own[i]);
    pthread_mutex_unlock(&lock);
    free(metrics->own);
    *metrics = (Metrics){0};
}
