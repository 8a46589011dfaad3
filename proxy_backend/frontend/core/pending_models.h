/* Models that the dispatcher keeps, but the core has not loaded. A request for such a model can wait for it: the
 * frontend writes the model's name to a pipe, and the dispatcher makes the core load the model. Some models are loaded
 * without a request, because the daemon has just started and is starting their workers.
 *
 *     requested ──▶ dispatcher notified ──▶ settled, for good: the core has loaded it, or the dispatcher has dropped it
 *
 * Any thread may call these functions.
 */
#ifndef PYTRITON_FRONTEND_CORE_PENDING_MODELS_H
#define PYTRITON_FRONTEND_CORE_PENDING_MODELS_H

#include "base/problem.h"

#include <stddef.h>

typedef struct PendingModels PendingModels;

typedef struct ModelWaiter ModelWaiter;
/* Called once, in a thread in which other waiters follow. Request the model again, unless there is a problem: the
 * model was not loaded in time, or the server ends.
 */
typedef void ModelWaiterResume(ModelWaiter *waiter, Problem *problem);

/* A waiter for a model. It is part of the waiting object, which it lends until `then` is called. Only pending_models.c
 * uses the fields.
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

/* Settings from the dispatcher: the names of the models, which of them are loaded without a request, the pipe that it
 * reads (-1 if none), the maximum waiting time, and the maximum number of waiters.
 */
typedef struct {
    PendingModelNames names, starting;
    int fd;
    uint64_t wait_s, max_waiters;
} PendingModelsSettings;

/* When a missing model is loaded: never, on request, or soon without a request. */
typedef enum { PENDING_NOT, PENDING_ON_DEMAND, PENDING_STARTING } PendingKind;

/* Create the set of models. Takes ownership of the names, and sorts them. Returns NULL with a problem. */
PendingModels *pending_models_new(PendingModelsSettings *settings, Problem *problem);
/* End all waits with a problem, and allow no new ones. Here and below, `pending` may be NULL. */
void pending_models_stop(PendingModels *pending);
void pending_models_free(PendingModels *pending);

/* Returns the number of models that are not settled. */
size_t pending_models_left(const PendingModels *pending);
/* Handle the core's answer that it lacks a model. `left` is the value of pending_models_left before the core was
 * asked. Returns true if the model is one of these and the dispatcher has been notified, or the model may have been
 * loaded since. Then the problem is PROBLEM_MODEL_PENDING, or PROBLEM_UNAVAILABLE if waiting is impossible. An earlier
 * problem is replaced.
 */
bool pending_models_request(PendingModels *pending, Slice model, size_t left, Problem *problem);
/* Returns how a missing model is loaded. Does not notify the dispatcher. */
PendingKind pending_models_kind(PendingModels *pending, Slice model);
/* If the problem is PROBLEM_MODEL_PENDING, clear it and let the waiter continue in `then` when the model is settled,
 * possibly before this function returns. Returns false for any other problem, if too many wait, or if the server ends.
 */
bool pending_models_wait(PendingModels *pending, Problem *problem, ModelWaiter *waiter, ModelWaiterResume *then);
/* The core has loaded the model, or the dispatcher no longer keeps it. Resumes the model's waiters. */
void pending_models_settle(PendingModels *pending, Slice model);

#endif
