/* Models that the dispatcher keeps, and that the core does not have yet. Whoever asks for one may wait: the dispatcher is told, on a pipe, a line with
 * the name, and has the core load it. Some come by themselves: their workers are being loaded after the daemon's start.
 *
 *     asked for ──▶ told ──▶ the core has loaded it, or it is no longer kept: settled, for good
 *
 * Any thread may call any of these.
 */
#ifndef PYTRITON_FRONT_AWAITED_H
#define PYTRITON_FRONT_AWAITED_H

#include "base/problem.h"

#include <stddef.h>

typedef struct Awaited Awaited;

typedef struct AwaitedBy AwaitedBy;
/* Called once, in a thread that others wait for: ask for the model again. With a problem: it has not come in time, or the server ends. */
typedef void AwaitedThen(AwaitedBy *waiter, Problem *problem);

/* Whoever waits for a model. It lies in what waits, and is that one's again when `then` is called. All of it is awaited.c's. */
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

/* What the dispatcher says: the names, which of them come by themselves, where it reads (-1: nowhere), how long somebody waits, and how many do at most. */
typedef struct {
    AwaitedNames names, coming;
    int fd;
    uint64_t wait_s, most;
} AwaitedSettings;

/* How the core comes to have a model that it does not have: not at all, when somebody asks for it, or soon, whether or not somebody does. */
typedef enum { AWAITED_NOT, AWAITED_WHEN_ASKED, AWAITED_SOON } AwaitedHow;

/* It takes the names' order away. NULL: a problem. */
Awaited *awaited_new(AwaitedSettings *settings, Problem *problem);
/* Have all who wait go on without their model, and nobody wait any more. `awaited` may be NULL, as in all that follows. */
void awaited_end(Awaited *awaited);
void awaited_free(Awaited *awaited);

/* How many are not settled. */
size_t awaited_left(const Awaited *awaited);
/* The core did not have a model; `left` were not settled before it was asked. True: it is one of these, and the dispatcher knows that it is asked for,
 * or it may have come meanwhile; the problem says so (PROBLEM_AWAITED, or PROBLEM_UNAVAILABLE where nobody can wait). Any other problem is replaced. */
bool awaited_asked(Awaited *awaited, Slice model, size_t left, Problem *problem);
/* The core does not have a model. The dispatcher is told nothing. */
AwaitedHow awaited_how(Awaited *awaited, Slice model);
/* Wait for a model, if that is the problem (PROBLEM_AWAITED). True: the problem has been cleared, and the waiter goes on by `then`, maybe before this
 * returns. False: the problem is another one, too many wait, or the server ends. */
bool awaited_wait(Awaited *awaited, Problem *problem, AwaitedBy *waiter, AwaitedThen *then);
/* The core has a model, or it is not kept any more. */
void awaited_settled(Awaited *awaited, Slice model);

#endif
