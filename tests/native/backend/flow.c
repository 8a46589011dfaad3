/* A flow and its bell, as the two sides of a stream use them: each line says what the side that makes the answers sees. */
#include "calls/flow.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

static void say(const char *when, Flow *flow, Wakeup *wakeup)
{
    struct pollfd rung = {.fd = wakeup->fd, .events = POLLIN};
    bool rings = poll(&rung, 1, 0) > 0;
    wakeup_reset(wakeup);
    printf("%s: %s%s\n", when, flow_is_full(flow, wakeup) ? "full" : "open", rings ? ", rung" : "");
}

int main(void)
{
    enum { MIB = 1 << 20 };
    Flow *caller = flow_new();
    Wakeup *wakeup = wakeup_new(), *other = wakeup_new();
    char name[64];
    snprintf(name, sizeof name, "%s", flow_name(caller));
    Flow *maker = flow_find(name);
    say("nothing", maker, wakeup);
    flow_add_unread(caller, 100 * MIB);
    say("one large", maker, wakeup);
    flow_add_unread(caller, 0);
    say("another", maker, wakeup);
    flow_mark_read(caller, 100 * MIB);
    say("large one read", maker, wakeup);
    flow_mark_read(caller, 0);
    for (int i = 0; i < 16; i++)
        flow_add_unread(caller, MIB);
    say("16 MiB", maker, wakeup);
    for (int i = 0; i < 7; i++)
        flow_mark_read(caller, MIB);
    say("9 MiB left", maker, wakeup);
    flow_mark_read(caller, MIB);
    flow_mark_read(caller, MIB);
    say("7 MiB left", maker, wakeup);
    for (int i = 0; i < 10000; i++)
        flow_add_unread(caller, 0);
    say("many small ones", maker, wakeup);
    flow_raise_limit(maker);
    say("widened", maker, wakeup);
    for (int i = 0; i < 16; i++)
        flow_add_unread(caller, MIB);
    say("as much again", maker, wakeup);
    say("another waits", maker, other);
    flow_end(caller);
    say("ended, to the first", maker, wakeup);
    flow_add_unread(caller, 100 * MIB);
    say("ended, to the other", maker, other);
    printf("%s\n", flow_find(name) || flow_find("") ? "found" : "not found");
    wakeup_unref(wakeup);
    wakeup_unref(other);
    flow_unref(caller);
    flow_unref(maker);
    return 0;
}
