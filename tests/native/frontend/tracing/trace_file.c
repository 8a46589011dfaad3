/* Puts traces into a file, the second of them when there is room for no more than a part of it. The argument: its path. */
#define _GNU_SOURCE
#include "tracing/trace_file.h"

#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>

enum { ROOM = 64 };

static void put(TraceFile *file, const char *entry, rlim_t room)
{
    struct rlimit limit = {room, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
    trace_file_put(file, slice_of(entry), 0);
}

int main(int count, char **arguments)
{
    TraceFile file = {.path = count > 1 ? arguments[1] : "traces.json", .fd = -1};
    bool at_once = count > 2;
    signal(SIGXFSZ, SIG_IGN);
    if (!at_once)
        put(&file, "{\"id\":1}", RLIM_INFINITY);
    put(&file, "{\"id\":2,\"of more bytes than there is room for\":\"xxxxxxxxxxxxxxxxxxxxxxxx\"}", ROOM);
    put(&file, "{\"id\":3}", RLIM_INFINITY);
    trace_file_close(&file);
    return 0;
}
