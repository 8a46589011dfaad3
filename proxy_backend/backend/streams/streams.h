/* Batches that may be answered many times, or at any time: see proxy_backend/streams.py. */
#ifndef PYTRITON_BACKEND_STREAMS_H
#define PYTRITON_BACKEND_STREAMS_H
#include "calls/flow.h"
#include "proxy/proxy.h"
#include "streams/flights.h"
#include "streams/send_watchdog.h"
#include "triton/metrics.h"

#include <pthread.h>

/* Get a lane and its reader thread unless there is one. Returns NULL, or why there will be no worker, for free(). */
char *streams_attach(Streams *streams);
/* Pass a batch to a worker. Returns when it has begun, or has been answered with an error. The requests are released.
 */
void streams_begin(Streams *streams, TRITONBACKEND_Request **requests, uint32_t count);
/* Release the lane. Returns false if answers are still in flight (tritonserver ends an instance without waiting for
 * them when it reduces their number); the proxy then ends by itself after the last answer.
 */
bool streams_end(Streams *streams);

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
