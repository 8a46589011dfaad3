/* The metrics of the fake tritonserver: what becomes of each is printed when it goes, with FAKE_METRICS. */
#define _GNU_SOURCE
#include "triton/api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct TRITONSERVER_Parameter {
    char *text; /* NAME="VALUE" */
};
struct TRITONSERVER_MetricFamily {
    char *name;
    int metrics;
};
struct TRITONSERVER_Metric {
    TRITONSERVER_MetricFamily *family;
    char labels[256];
    double value;
};

TRITONSERVER_Parameter *TRITONSERVER_ParameterNew(const char *name, int type, const void *value)
{
    TRITONSERVER_Parameter *made = malloc(sizeof *made);
    (void)type; /* labels are strings */
    if (asprintf(&made->text, "%s=\"%s\"", name, (const char *)value) < 0)
        abort();
    return made;
}

void TRITONSERVER_ParameterDelete(TRITONSERVER_Parameter *parameter)
{
    free(parameter->text);
    free(parameter);
}

TRITONSERVER_Error *TRITONSERVER_MetricFamilyNew(
    TRITONSERVER_MetricFamily **family, int kind, const char *name, const char *description)
{
    (void)kind;
    (void)description;
    *family = calloc(1, sizeof **family);
    (*family)->name = strdup(name);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_MetricFamilyDelete(TRITONSERVER_MetricFamily *family)
{
    if (family->metrics) /* the real one does not bear it */
        abort();
    free(family->name);
    free(family);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_MetricNew(TRITONSERVER_Metric **metric, TRITONSERVER_MetricFamily *family,
    const TRITONSERVER_Parameter **labels, uint64_t label_count)
{
    *metric = calloc(1, sizeof **metric);
    (*metric)->family = family;
    family->metrics++;
    for (uint64_t i = 0; i < label_count; i++) {
        size_t used = strlen((*metric)->labels);
        snprintf((*metric)->labels + used, sizeof(*metric)->labels - used, i ? ",%s" : "%s", labels[i]->text);
    }
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_MetricIncrement(TRITONSERVER_Metric *metric, double value)
{
    metric->value += value;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_MetricSet(TRITONSERVER_Metric *metric, double value)
{
    metric->value = value;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_MetricDelete(TRITONSERVER_Metric *metric)
{
    if (getenv("FAKE_METRICS"))
        printf("metric %s{%s} %g\n", metric->family->name, metric->labels, metric->value);
    metric->family->metrics--;
    free(metric);
    return NULL;
}
