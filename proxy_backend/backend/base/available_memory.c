#define _GNU_SOURCE
#include "base/available_memory.h"

#include "base/strings.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Read the number that follows `key` in a file of lines "KEY NUMBER". With an empty key, read the file's first number.
 */
static bool read_number(const char *path, const char *key, uint64_t *number)
{
    FILE *file = fopen(path, "re");
    char line[256];
    bool found = false;
    if (file == NULL)
        return false;
    while (!found && fgets(line, sizeof line, file)) {
        size_t size = strlen(key);
        char *end = line;
        if (strncmp(line, key, size) == 0)
            *number = strtoull(line + size, &end, 10);
        found = end > line + size;
    }
    fclose(file);
    return found;
}

/* A version of the memory controller of control groups. */
typedef struct MemoryController {
    const char *name; /* in /proc/self/cgroup */
    const char *mount, *limit, *used;
    const char *cached; /* line of memory.stat with the page cache that the kernel reclaims under pressure */
} MemoryController;

static const MemoryController controllers[] = {
    {"", "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "},
    {"memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "},
};

/* Writes the path of this process's control group of a controller; an empty one if there is none. */
static void own_group(const char *controller, char group[PATH_MAX])
{
    char line[PATH_MAX];
    FILE *file = fopen("/proc/self/cgroup", "re");
    group[0] = 0;
    while (file && fgets(line, sizeof line, file)) {
        char *rest = line;
        strsep(&rest, ":");
        char *names = strsep(&rest, ":");
        for (char *name = strsep(&names, ","); rest && name; name = strsep(&names, ","))
            if (strcmp(name, controller) == 0)
                snprintf(group, PATH_MAX, "%.*s", (int)strcspn(rest, "\n"), rest);
    }
    if (file)
        fclose(file);
}

/* Returns the number of bytes left below the limits of this process's control group and its ancestors, and at most
 * `most`.
 */
static uint64_t cgroup_available(const MemoryController *controller, uint64_t most)
{
    char group[PATH_MAX], path[PATH_MAX + 64];
    own_group(controller->name, group);
    for (;;) {
        uint64_t limit, used, cached = 0;
        snprintf(path, sizeof path, "%s%s/%s", controller->mount, group, controller->limit);
        bool limited = read_number(path, "", &limit);
        snprintf(path, sizeof path, "%s%s/%s", controller->mount, group, controller->used);
        if (limited && read_number(path, "", &used)) {
            snprintf(path, sizeof path, "%s%s/memory.stat", controller->mount, group);
            read_number(path, controller->cached, &cached);
            uint64_t left = limit + cached > used ? limit + cached - used : 0;
            most = left < most ? left : most;
        }
        char *last = strrchr(group, '/');
        if (last == NULL)
            return most;
        *last = 0;
    }
}

uint64_t memory_available(void)
{
    uint64_t kib = 0, most;
    if (!read_number("/proc/meminfo", "MemAvailable:", &kib))
        return UINT64_MAX;
    most = kib * 1024;
    for (size_t i = 0; i < sizeof controllers / sizeof *controllers; i++)
        most = cgroup_available(&controllers[i], most);
    return most;
}

const uint64_t memory_check_interval = 1 << 26;

char *memory_check(uint64_t size)
{
    uint64_t available = memory_available();
    return size <= available
        ? NULL
        : strdup_printf("it needs %lu bytes of memory, but only %lu are available on this machine", size, available);
}
