/* Models that the dispatcher keeps, but the core has not loaded. A request for one may wait: the frontend writes a line
 * with the name to a pipe, and the dispatcher makes the core load it. Some are loaded without a request: their workers are
 * starting after the daemon's start.
 *
 *     requested ──▶ dispatcher notified ──▶ the core has loaded it, or it is no longer kept: settled, for good
 *
 * Any thread may call any of these.
 */
#ifndef PYTRITON_FRONTEND_CORE_PENDING_MODELS_H
#define PYTRITON_FRONTEND_CORE_PENDING_MODELS_H

#include "base/problem.h"

#include <stddef.h>

typedef struct PendingModels PendingModels;

typedef struct ModelWaiter ModelWaiter;
/* Called once, in a thread that others wait for: request the model again. With a problem: it has not been loaded in
 * time, or the server ends.
 */
typedef void ModelWaiterResume(ModelWaiter *waiter, Problem *problem);

/* A waiter for a model, embedded in the waiting object, which owns it again when `then` is called. All fields are
 * pending_models.c's.
 */
struct ModelWaiter {
    ModelWaiter *next;
    size_t model;
    uint64_t until_ms;
    ModelWaiterResume *then;
};

typedef struct {
    char **all;
    size_t count;
} PendingModelNames;

/* From the dispatcher: the names, which of them are loaded anyway, the pipe it reads (-1: none), the maximum wait,
 * and the maximum number of waiters.
 */
typedef struct {
    PendingModelNames names, starting;
    int fd;
    uint64_t wait_s, max_waiters;
} PendingModelsSettings;

/* When a missing model is loaded: never, on request, or soon without a request. */
typedef enum { PENDING_NOT, PENDING_ON_DEMAND, PENDING_STARTING } PendingKind;

/* Takes ownership of the names, and sorts them. NULL: a problem. */
PendingModels *pending_models_new(PendingModelsSettings *settings, Problem *problem);
/* End all waits with a problem, and allow no more. `pending` may be NULL, here and below. */
void pending_models_stop(PendingModels *pending);
void pending_models_free(PendingModels *pending);

/* Returns how many are not settled. */
size_t pending_models_left(const PendingModels *pending);
/* The core did not have a model; `left` were not settled before it was asked. Returns true if it is one of these and
 * the dispatcher has been notified, or it may have been loaded since; sets the problem (PROBLEM_MODEL_PENDING, or
 * PROBLEM_UNAVAILABLE if waiting is impossible). Any other problem is replaced.
 */
bool pending_models_request(PendingModels *pending, Slice model, size_t left, Problem *problem);
/* Returns how a missing model is loaded, without notifying the dispatcher. */
PendingKind pending_models_kind(PendingModels *pending, Slice model);
/* Wait for a model, if that is the problem (PROBLEM_MODEL_PENDING). Returns true if the problem has been cleared, and the
 * waiter continues in `then`, maybe before this returns; false if the problem is another one, too many wait, or the
 * server ends.
 */
bool pending_models_wait(PendingModels *pending, Problem *problem, ModelWaiter *waiter, ModelWaiterResume *then);
/* The core has loaded the model, or it is no longer kept. */
void pending_models_settle(PendingModels *pending, Slice model);

#endif
