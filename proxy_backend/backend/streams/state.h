/* The state of streams that tritonserver's threads (streams.c) and the reader thread (reader.c) share. */
#ifndef PYTRITON_BACKEND_STREAMS_STATE_H
#define PYTRITON_BACKEND_STREAMS_STATE_H

#include "calls/flow.h"
#include "proxy/proxy.h"
#include "streams/flights.h"
#include "streams/send_watchdog.h"
#include "triton/metrics.h"

#include <pthread.h>

struct Streams {
    Proxy *proxy;
    bool waits_for_return; /* the next batch waits until BatchReturned instead of BatchBegun */
    /* Guards the fields below, the proxy, and sending on the lane. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Flight *flights;
    int64_t inflight_count, room;
    char *fault; /* how the worker violated the protocol, if it did so since the last batch was sent; otherwise NULL */
    bool has_reader; /* a reader thread was started and must be joined */
    bool is_stopping;
    bool is_orphaned; /* tritonserver has dropped the instance, so the reader ends the proxy */
    pthread_t reader;
    /* Only the reader thread uses these. */
    Lane *lane;
    int64_t uncredited;
    uint64_t checked_ns;
    bool has_check_timeout;
    bool is_retiring; /* the worker accepts no further batches on this lane */
    Wakeup *wakeup;
    uint32_t paused_count; /* number of paused requests */
    Metrics metrics;
    WatchedSender sender;
};

/* Returns NULL without memory or a descriptor. */
Streams *streams_new(Proxy *proxy);
/* The caller does not hold the lock, and no reader thread runs. */
void streams_free(Streams *streams);

#endif
