/* The state that the threads of streams.c and reader.c share; its creation and destruction. */
#ifndef PYTRITON_SHARED_H
#define PYTRITON_SHARED_H

#include "calls/flow.h"
#include "proxy/proxy.h"
#include "streams/flights.h"
#include "streams/watch.h"
#include "triton/metrics.h"

#include <pthread.h>

struct Streams {
    Proxy *proxy;
    bool until_returned; /* a batch holds back the next one until BatchReturned, not just BatchBegun */
    /* Guards what follows, the proxy, and sending on the lane. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Flight *flights;
    int64_t under_way, room;
    char *fault; /* how the worker broke the protocol on the last lane, since the last batch was sent; or NULL */
    bool reading; /* there is, or was, a reader, which must be joined */
    bool ending;
    bool alone; /* tritonserver has dropped the instance: the reader ends the proxy */
    pthread_t reader;
    /* Used by the reader only. */
    Lane *lane;
    int64_t uncredited;
    uint64_t looked_ns;
    bool ticking;
    bool retires; /* the worker accepts nothing more on this lane */
    Bell *bell;
    uint32_t held; /* requests */
    Metrics metrics;
    Sender sender;
};

/* NULL without memory or a descriptor. */
Streams *streams_new(Proxy *proxy);
/* Called without the lock, when no reader runs. */
void streams_free(Streams *streams);

#endif
