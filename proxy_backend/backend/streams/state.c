#define _GNU_SOURCE
#include "streams/state.h"

#include <stdlib.h>
#include <time.h>

Streams *streams_new(Proxy *proxy)
{
    Streams *streams = calloc(1, sizeof *streams);
    if (streams == NULL)
        return NULL;
    streams->wakeup = wakeup_new();
    if (streams->wakeup == NULL) {
        free(streams);
        return NULL;
    }
    streams->proxy = proxy;
    streams->waits_for_return = proxy->model->is_triton_python;
    pthread_mutex_init(&streams->lock, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&streams->changed, &clock);
    pthread_condattr_destroy(&clock);
    return streams;
}

void streams_free(Streams *streams)
{
    streams->proxy->streams = NULL;
    metrics_free(&streams->metrics);
    free(streams->fault);
    wakeup_unref(streams->wakeup);
    pthread_cond_destroy(&streams->changed);
    pthread_mutex_destroy(&streams->lock);
    free(streams);
}
