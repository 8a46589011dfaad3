/* Models that the dispatcher keeps, but the core has not loaded. A request for one may wait: the frontend writes a line
 * with the name to a pipe, and the dispatcher makes the core load it. Some are loaded without a request: their workers are
 * starting after the daemon's start.
 *
 *     requested ──▶ dispatcher notified ──▶ the core has loaded it, or it is no longer kept: settled, for good
 *
 * Any thread may call any of these.
 */
#ifndef PYTRITON_FRONT_AWAITED_H
#define PYTRITON_FRONT_AWAITED_H

#include "base/problem.h"

#include <stddef.h>

typedef struct Awaited Awaited;

typedef struct AwaitedBy AwaitedBy;
/* Called once, in a thread that others wait for: request the model again. With a problem: it has not been loaded in
 * time, or the server ends.
 */
typedef void AwaitedThen(AwaitedBy *waiter, Problem *problem);

/* A waiter for a model, embedded in the waiting object, which owns it again when `then` is called. All fields are
 * awaited.c's.
 */
struct AwaitedBy {
    AwaitedBy *next;
    size_t model;
    uint64_t until_ms;
    AwaitedThen *then;
};

typedef struct {
    char **all;
    size_t count;
} AwaitedNames;

/* From the dispatcher: the names, which of them are loaded anyway, the pipe it reads (-1: none), the maximum wait,
 * and the maximum number of waiters.
 */
typedef struct {
    AwaitedNames names, coming;
    int fd;
    uint64_t wait_s, most;
} AwaitedSettings;

/* When a missing model is loaded: never, on request, or soon without a request. */
typedef enum { AWAITED_NOT, AWAITED_WHEN_ASKED, AWAITED_SOON } AwaitedHow;

/* Takes ownership of the names, and sorts them. NULL: a problem. */
Awaited *awaited_new(AwaitedSettings *settings, Problem *problem);
/* End all waits with a problem, and allow no more. `awaited` may be NULL, here and below. */
void awaited_end(Awaited *awaited);
void awaited_free(Awaited *awaited);

/* Returns how many are not settled. */
size_t awaited_left(const Awaited *awaited);
/* The core did not have a model; `left` were not settled before it was asked. Returns true if it is one of these and
 * the dispatcher has been notified, or it may have been loaded since; sets the problem (PROBLEM_AWAITED, or
 * PROBLEM_UNAVAILABLE if waiting is impossible). Any other problem is replaced.
 */
bool awaited_asked(Awaited *awaited, Slice model, size_t left, Problem *problem);
/* Returns how a missing model is loaded, without notifying the dispatcher. */
AwaitedHow awaited_how(Awaited *awaited, Slice model);
/* Wait for a model, if that is the problem (PROBLEM_AWAITED). Returns true if the problem has been cleared, and the
 * waiter continues in `then`, maybe before this returns; false if the problem is another one, too many wait, or the
 * server ends.
 */
bool awaited_wait(Awaited *awaited, Problem *problem, AwaitedBy *waiter, AwaitedThen *then);
/* The core has loaded the model, or it is no longer kept. */
void awaited_settled(Awaited *awaited, Slice model);

#endif
