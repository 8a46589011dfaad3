/* The attachment of a proxy to a worker, by the questions of proxy_backend/attachment.py. */
#ifndef PYTRITON_ATTACHMENT_H
#define PYTRITON_ATTACHMENT_H

#include "proxy/proxy.h"

/* Texts are for the client, and for free(). */

/* Get a lane, unless there is one. Returns NULL, or the reason why no worker will come any more. A model that sleeps wakes if a
 * batch waits; else there may be no lane, and no reason. */
char *attach(Proxy *proxy, bool batch);
/* Close the lane. */
void drop_lane(Proxy *proxy);
/* Send Detach: this proxy ends. */
void detach(Proxy *proxy);
/* The facts for a verdict about requests whose worker is lost or overdue (LaneLost in ipc/messages/proxy.py). */
typedef struct {
    int losses;        /* workers that were lost with them */
    uint32_t requests; /* how many they are */
    int in_row;        /* of their batch, how many lost a worker each by itself, one after the other */
    bool final;        /* they cannot be tried again */
    bool whole;        /* what it says: the rest of their batch fails with them */
    uint64_t taken_ns; /* of judge_overdue: when they were first seen to have been taken; 0: they were not */
    char *request_id;  /* of one request; NULL: they are several. Who asks frees it. */
} Loss;
/* The error for requests whose worker was lost; NULL: try another worker. */
char *judge_loss(Proxy *proxy, Loss *loss);
/* The batch has taken too long; `taken`: the worker has read it. NULL: wait on for so long, or if `retry`, try another
 * worker. */
char *judge_overdue(Proxy *proxy, Loss *loss, bool taken, double *wait_s, bool *retry);

#endif
