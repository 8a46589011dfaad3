/* Has a loop's connections drained and ended twice each before the loop looks, as the end of a server may, and then once more. */
#include "net/connection_internal.h"

#include <stdio.h>
#include <unistd.h>

enum { PATIENCE_S = 60 };

static void ask(Loop *loop)
{
    for (int i = 0; i < 2; i++) {
        connections_drain(loop);
        connections_abort(loop);
    }
}

int main(void)
{
    Problem problem = {0};
    Loop *loop = loop_new(&problem);
    alarm(PATIENCE_S);
    if (loop == NULL || connections_in(loop) == NULL)
        return 1;
    ask(loop);
    loop_stop(loop);
    loop_run(loop); /* what it was given before it was stopped */
    bool drained = connections_are_draining(loop);
    ask(loop);
    loop_free(loop);
    printf("%s\n", drained ? "drained" : "not drained");
    return 0;
}
