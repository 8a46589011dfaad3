/* The state that the threads of streams.c and reader.c share; its creation and destruction. */
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
    bool waits_for_return; /* a batch holds back the next one until BatchReturned, not just BatchBegun */
    /* Guards what follows, the proxy, and sending on the lane. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Flight *flights;
    int64_t inflight_count, room;
    char *fault; /* how the worker broke the protocol on the last lane, since the last batch was sent; or NULL */
    bool has_reader; /* there is, or was, a reader, which must be joined */
    bool is_stopping;
    bool is_orphaned; /* tritonserver has dropped the instance: the reader ends the proxy */
    pthread_t reader;
    /* Used by the reader only. */
    Lane *lane;
    int64_t uncredited;
    uint64_t checked_ns;
    bool has_check_timeout;
    bool is_retiring; /* the worker accepts nothing more on this lane */
    Wakeup *wakeup;
    uint32_t paused_count; /* requests */
    Metrics metrics;
    WatchedSender sender;
};

/* NULL without memory or a descriptor. */
Streams *streams_new(Proxy *proxy);
/* Called without the lock, when no reader runs. */
void streams_free(Streams *streams);

#endif
