#include "streams/shared.h"

#include <stdlib.h>

void streams_free(Streams *streams)
{
    streams->proxy->streams = NULL;
    metrics_free(&streams->metrics);
    free(streams->fault);
    bell_unref(streams->bell);
    pthread_cond_destroy(&streams->changed);
    pthread_mutex_destroy(&streams->lock);
    free(streams);
}
