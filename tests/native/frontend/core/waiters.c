/* What is said of models that come when they are asked for, where one of them comes between the core's "unknown" and the question what is known of it.
 * It writes a line for each question: what was asked, whether it comes, and the kind of the problem.
 */
#include "core/pending_models.h"

#include <stdio.h>
#include <unistd.h>

static void ask(PendingModels *awaited, const char *what, const char *model, size_t left)
{
    Problem problem = {0};
    bool comes = pending_models_request(awaited, slice_of(model), left, &problem);
    const char *kind = problem.kind == PROBLEM_MODEL_PENDING ? "awaited"
        : problem.kind == PROBLEM_NONE                       ? "none"
                                                             : "other";
    printf("%s: %s, %s\n", what, comes ? "comes" : "unknown", kind);
    problem_clear(&problem);
}

int main(void)
{
    char *names[] = {"one", "two"};
    int ends[2];
    Problem problem = {0};
    if (pipe(ends) != 0)
        return 1;
    PendingModelsSettings settings = {.names = {names, 2}, .fd = ends[1], .wait_s = 60, .max_waiters = 10};
    PendingModels *awaited = pending_models_new(&settings, &problem);
    if (awaited == NULL)
        return 1;
    size_t left = pending_models_left(awaited);
    ask(awaited, "one that is to come", "one", left);
    ask(awaited, "another name", "three", left);
    pending_models_settle(awaited, slice_of("one"));
    ask(awaited, "one that came meanwhile", "one", left);
    ask(awaited, "one that had come before", "one", pending_models_left(awaited));
    left = pending_models_left(awaited);
    pending_models_settle(awaited, slice_of("two"));
    ask(awaited, "the last one, that came meanwhile", "two", left);
    ask(awaited, "the last one, that had come before", "two", pending_models_left(awaited));
    ask(NULL, "where none comes", "one", pending_models_left(NULL));
    pending_models_free(awaited);
    close(ends[0]);
    close(ends[1]);
    return 0;
}
