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

/* Returns the number of bytes left below the limits (cgroup v2) of this process's control group and its ancestors, and
 * at most `most`.
 */
static uint64_t cgroup_available(uint64_t most)
{
    char group[PATH_MAX] = "", path[PATH_MAX + 64], line[PATH_MAX];
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "0::", 3) == 0)
            snprintf(group, sizeof group, "%.*s", (int)strcspn(line + 3, "\n"), line + 3);
    if (file)
        fclose(file);
    for (;;) {
        uint64_t limit, used, cached = 0;
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", group);
        bool limited = read_number(path, "", &limit);
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.current", group);
        if (limited && read_number(path, "", &used)) {
            snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.stat", group);
            read_number(path, "inactive_file ", &cached); /* The kernel reclaims these under pressure. */
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
    uint64_t kib = 0;
    if (!read_number("/proc/meminfo", "MemAvailable:", &kib))
        return UINT64_MAX;
    return cgroup_available(kib * 1024);
}

const uint64_t memory_check_interval = 1 << 26;

char *memory_check(uint64_t size)
{
    uint64_t available = memory_available();
    return size <= available
        ? NULL
        : strdup_printf("it needs %lu bytes of memory, but only %lu are available on this machine", size, available);
}
