/* A flow and its bell, as the two sides of a stream use them: each line says what the side that makes the answers sees. */
#include "calls/flow.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

static void say(const char *when, Flow *flow, Bell *bell)
{
    struct pollfd rung = {.fd = bell->fd, .events = POLLIN};
    bool rings = poll(&rung, 1, 0) > 0;
    bell_hush(bell);
    printf("%s: %s%s\n", when, flow_is_full(flow, bell) ? "full" : "open", rings ? ", rung" : "");
}

int main(void)
{
    enum { MIB = 1 << 20 };
    Flow *caller = flow_new();
    Bell *bell = bell_new(), *other = bell_new();
    char name[64];
    snprintf(name, sizeof name, "%s", flow_name(caller));
    Flow *maker = flow_find(name);
    say("nothing", maker, bell);
    flow_put(caller, 100 * MIB);
    say("one large", maker, bell);
    flow_put(caller, 0);
    say("another", maker, bell);
    flow_take(caller, 100 * MIB);
    say("large one read", maker, bell);
    flow_take(caller, 0);
    for (int i = 0; i < 16; i++)
        flow_put(caller, MIB);
    say("16 MiB", maker, bell);
    for (int i = 0; i < 7; i++)
        flow_take(caller, MIB);
    say("9 MiB left", maker, bell);
    flow_take(caller, MIB);
    flow_take(caller, MIB);
    say("7 MiB left", maker, bell);
    for (int i = 0; i < 10000; i++)
        flow_put(caller, 0);
    say("many small ones", maker, bell);
    flow_widen(maker);
    say("widened", maker, bell);
    for (int i = 0; i < 16; i++)
        flow_put(caller, MIB);
    say("as much again", maker, bell);
    say("another waits", maker, other);
    flow_end(caller);
    say("ended, to the first", maker, bell);
    flow_put(caller, 100 * MIB);
    say("ended, to the other", maker, other);
    printf("%s\n", flow_find(name) || flow_find("") ? "found" : "not found");
    bell_unref(bell);
    bell_unref(other);
    flow_unref(caller);
    flow_unref(maker);
    return 0;
}
