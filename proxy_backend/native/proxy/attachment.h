/* Attachment of a proxy to a worker, using the requests of proxy_backend/attachment.py. */
#ifndef PYTRITON_ATTACHMENT_H
#define PYTRITON_ATTACHMENT_H

#include "proxy/proxy.h"

/* All texts are for the client; the caller frees them. */

/* Get a lane unless there is one. Returns NULL, or why there will be no worker. A suspended model wakes up if a batch
 * waits; otherwise there may be neither a lane nor an error.
 */
char *attach(Proxy *proxy, bool batch);
/* Close the lane. */
void drop_lane(Proxy *proxy);
/* Send Detach: this proxy ends. */
void detach(Proxy *proxy);
/* The facts for a verdict about requests whose worker is lost or overdue (LaneLost in _protocol/messages/proxy.py). */
typedef struct {
    int losses;        /* how many workers were lost with these requests */
    uint32_t requests; /* their number */
    int in_row;        /* how many requests of their batch lost a worker in a row when retried individually */
    bool final;        /* they cannot be retried */
    bool whole;        /* set by the verdict: the rest of their batch fails with them */
    uint64_t taken_ns; /* set by judge_overdue: when the worker was first seen to have read them; 0: not yet */
    char *request_id;  /* the id of a single request; NULL if there are several. The caller frees it. */
} Loss;
/* Returns the error for requests whose worker was lost; NULL: try another worker. */
char *judge_loss(Proxy *proxy, Loss *loss);
/* Ask about a batch that takes too long. `taken`: the worker has read it. Returns the error; NULL: wait for the
 * returned time, or if `retry`, try another worker.
 */
char *judge_overdue(Proxy *proxy, Loss *loss, bool taken, double *wait_s, bool *retry);

#endif
