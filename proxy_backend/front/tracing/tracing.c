#include "tracing/tracing.h"

#include <stdlib.h>

struct Tracing {
    Server *server;
};

Tracing *tracing_new(Server *server, Problem *problem)
{
    Tracing *tracing = calloc(1, sizeof *tracing);
    if (tracing == NULL)
        problem_no_memory(problem);
    else
        tracing->server = server;
    return tracing;
}

void tracing_free(Tracing *tracing)
{
    free(tracing);
}

TRITONSERVER_InferenceTrace *tracing_begin(Tracing *tracing, const char *model, const char *parent, const char *state)
{
    (void)tracing;
    (void)model;
    (void)parent;
    (void)state;
    return NULL;
}
