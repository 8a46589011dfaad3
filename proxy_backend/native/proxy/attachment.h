/* The attachment of a proxy to a worker, by the questions of proxy_backend/attachment.py. */
#ifndef PYTRITON_ATTACHMENT_H
#define PYTRITON_ATTACHMENT_H

#include "proxy/proxy.h"

/* The texts are for the client; the caller frees them. */

/* Get a lane, unless there is one. Returns NULL, or the reason why no worker will come any more. A model that sleeps wakes if a
 * batch waits; else there may be no lane, and no reason. */
char *attach(Proxy *proxy, bool batch);
/* Close the lane. */
void drop_lane(Proxy *proxy);
/* Send Detach: this proxy ends. */
void detach(Proxy *proxy);
/* The facts for a verdict about requests whose worker is lost or overdue (LaneLost in _protocol/messages/proxy.py). */
typedef struct {
    int losses;        /* workers that were lost while they had them */
    uint32_t requests; /* how many they are */
    int in_row;        /* requests of their batch that were tried alone and lost a worker, one after the other */
    bool final;        /* they cannot be tried again */
    bool whole;        /* set by the verdict: the rest of their batch fails with them */
    uint64_t taken_ns; /* set by judge_overdue: when the worker was first seen to have taken them; 0: it has not */
    char *request_id;  /* the id of a single request; NULL: there are several. The caller frees it. */
} Loss;
/* Returns the error for requests whose worker was lost; NULL: try another worker. */
char *judge_loss(Proxy *proxy, Loss *loss);
/* Ask about a batch that takes too long; `taken`: the worker has read it. Returns NULL: wait on for so long, or if `retry`, try another
 * worker. */
char *judge_overdue(Proxy *proxy, Loss *loss, bool taken, double *wait_s, bool *retry);

#endif
