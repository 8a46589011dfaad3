#include "net/limits.h"

#include <stdatomic.h>

static _Atomic uint64_t refusals[REFUSALS];

static const char *const names[REFUSALS] = {
    [REFUSED_CONNECTIONS] = "connections",
    [REFUSED_CONNECTIONS_PER_ADDRESS] = "connections_per_address",
    [REFUSED_DESCRIPTORS] = "descriptors",
    [REFUSED_HANDSHAKE] = "handshake",
    [REFUSED_HANDSHAKE_TIME] = "handshake_time",
    [REFUSED_HEADER_TIME] = "header_time",
    [REFUSED_BODY_TIME] = "body_time",
    [REFUSED_IDLE_TIME] = "idle_time",
    [REFUSED_UNSENT_TIME] = "unsent_time",
    [REFUSED_UNSENT_BYTES] = "unsent_bytes",
    [REFUSED_HEADER_BYTES] = "header_bytes",
    [REFUSED_HEADERS] = "headers",
    [REFUSED_BODY_BYTES] = "body_bytes",
    [REFUSED_UNPACKED_BYTES] = "unpacked_bytes",
    [REFUSED_TOTAL_BODY_BYTES] = "total_body_bytes",
    [REFUSED_MALFORMED] = "malformed",
    [REFUSED_JSON_DEPTH] = "json_depth",
    [REFUSED_JSON_VALUES] = "json_values",
    [REFUSED_INPUTS] = "inputs",
    [REFUSED_OUTPUT_BYTES] = "output_bytes",
    [REFUSED_REGIONS] = "regions",
    [REFUSED_STREAMS] = "streams",
    [REFUSED_RESETS] = "resets",
    [REFUSED_OTHER_SITE] = "other_site",
    [REFUSED_RESTRICTED] = "restricted",
};

void refusals_count(Refusal refusal)
{
    atomic_fetch_add_explicit(&refusals[refusal], 1, memory_order_relaxed);
}

uint64_t refusals_read(Refusal refusal)
{
    return atomic_load_explicit(&refusals[refusal], memory_order_relaxed);
}

const char *refusal_name(Refusal refusal)
{
    return names[refusal];
}

/* Limits for a client that leaves much unread. The first two are fractions of the time that it has for little, and of
 * `unsent_bytes`, which it has to read in this time. However fast it reads, at most MOST_TIMES × `unsent_bytes` may
 * wait for it.
 */
enum { IDLE_PART = 12, MIN_PART = 64, MOST_TIMES = 8 };

bool progress_stalls(Progress *progress, bool is_expected, uint64_t min_bytes, uint64_t limit_ms, uint64_t now_ms)
{
    bool goes_on = !is_expected || !progress->is_expected ||
        (int64_t)(progress->bytes - progress->checked_bytes) >= (int64_t)min_bytes;
    progress->is_expected = is_expected;
    if (goes_on) {
        progress->checked_bytes = progress->bytes;
        progress->checked_ms = now_ms;
    }
    return now_ms - progress->checked_ms >= limit_ms;
}

bool limits_are_unread(const Limits *limits, Progress *read_progress, uint64_t unread, uint64_t now_ms)
{
    uint64_t min_bytes = limits->unsent_bytes / MIN_PART;
    min_bytes = min_bytes < LIMITS_PROGRESS ? LIMITS_PROGRESS : min_bytes;
    bool stalls =
        progress_stalls(read_progress, unread > limits->unsent_bytes, min_bytes, limits->unsent_ms / IDLE_PART, now_ms);
    uint64_t most = limits->unsent_bytes * MOST_TIMES;
    return stalls || unread > (most < limits->output_bytes ? most : limits->output_bytes);
}

static uint64_t unpacked;

bool unpacked_reserve(const Limits *limits, uint64_t size, Problem *problem)
{
    if (__atomic_add_fetch(&unpacked, size, __ATOMIC_RELAXED) <= limits->unpacked_bytes)
        return true;
    __atomic_sub_fetch(&unpacked, size, __ATOMIC_RELAXED);
    refusals_count(REFUSED_UNPACKED_BYTES);
    return problem_set(problem, PROBLEM_TOO_MANY,
        "decompressed requests would take more than %llu bytes (unpacked_bytes): try again later, or send the request "
        "uncompressed",
        (unsigned long long)limits->unpacked_bytes);
}

void body_release(BodyCount *count)
{
    if (count->unpacked)
        __atomic_sub_fetch(&unpacked, count->unpacked, __ATOMIC_RELAXED);
    bodies_release(count->received);
    *count = (BodyCount){0};
}

static uint64_t bodies;

bool bodies_reserve(const Limits *limits, uint64_t size, Problem *problem)
{
    if (__atomic_add_fetch(&bodies, size, __ATOMIC_RELAXED) <= limits->total_body_bytes)
        return true;
    bodies_release(size);
    refusals_count(REFUSED_TOTAL_BODY_BYTES);
    return problem_set(problem, PROBLEM_TOO_MANY,
        "the requests that are being received or answered would take more than %llu bytes (total_body_bytes): try "
        "again later",
        (unsigned long long)limits->total_body_bytes);
}

void bodies_release(uint64_t size)
{
    if (size)
        __atomic_sub_fetch(&bodies, size, __ATOMIC_RELAXED);
}

static uint64_t unsent;

bool unsent_reserve(const Limits *limits, uint64_t before, uint64_t size)
{
    uint64_t total = __atomic_fetch_add(&unsent, size, __ATOMIC_RELAXED);
    uint64_t most = limits->total_unsent_bytes, shared = most / 2;
    bool total_fits = before == 0 ? total <= shared || total + size <= most : total + size <= shared;
    bool client_fits = before <= limits->unsent_bytes * MOST_TIMES;
    if (total_fits && client_fits)
        return true;
    unsent_release(size);
    return false;
}

bool unsent_is_excessive(const Limits *limits, uint64_t before)
{
    return before > limits->unsent_bytes * MOST_TIMES / 2;
}

void unsent_add(uint64_t size)
{
    __atomic_add_fetch(&unsent, size, __ATOMIC_RELAXED);
}

void unsent_release(uint64_t size)
{
    __atomic_sub_fetch(&unsent, size, __ATOMIC_RELAXED);
}

bool unsent_problem(const Limits *limits, Problem *problem)
{
    return problem_set(problem, PROBLEM_TOO_MANY,
        "clients leave too much of their answers unread; the limit is %llu bytes for this one and %llu for all "
        "(total_unsent_bytes): read faster, or try again later",
        (unsigned long long)(limits->unsent_bytes * MOST_TIMES), (unsigned long long)limits->total_unsent_bytes);
}

uint64_t unsent_timeout_ms(const Limits *limits)
{
    bool much = __atomic_load_n(&unsent, __ATOMIC_RELAXED) > limits->total_unsent_bytes / 2;
    return much ? unsent_check_interval_ms(limits) : limits->unsent_ms;
}

uint64_t unsent_check_interval_ms(const Limits *limits)
{
    return limits->unsent_ms / IDLE_PART + 1;
}

/* The names of the limits in the settings, and their ranges. Times are in seconds there. */
static const struct {
    const char *name;
    size_t offset;
    bool is_time;
    double min_bytes, most, usual;
} table[] = {
    {"header_bytes", offsetof(Limits, header_bytes), false, 1024, 1 << 24, 1 << 16},
    {"headers", offsetof(Limits, headers), false, 8, 1 << 16, 128},
    {"body_bytes", offsetof(Limits, body_bytes), false, 1024, 1e15, 2147483647},
    {"unpacked_bytes", offsetof(Limits, unpacked_bytes), false, 1024, 1e15, 4294967296},
    {"total_body_bytes", offsetof(Limits, total_body_bytes), false, 1 << 20, 1e15, 1 << 30},
    {"json_depth", offsetof(Limits, json_depth), false, 8, 256, 100},
    {"json_values", offsetof(Limits, json_values), false, 1024, 1e12, 1 << 26},
    {"inputs", offsetof(Limits, inputs), false, 1, 1 << 20, 1024},
    {"output_bytes", offsetof(Limits, output_bytes), false, 1024, 1e15, 8589934592},
    {"regions", offsetof(Limits, regions), false, 0, 1 << 20, 1 << 14},
    {"kept_bytes", offsetof(Limits, kept_bytes), false, 4096, 1 << 30, 131072},
    {"kept_calls", offsetof(Limits, kept_calls), false, 0, 1 << 20, 256},
    {"connections", offsetof(Limits, connections), false, 1, 1 << 24, 1 << 15},
    {"connections_per_address", offsetof(Limits, connections_per_address), false, 0, 1 << 24, 0},
    {"streams", offsetof(Limits, streams), false, 1, 1 << 20, 1024},
    {"resets_per_s", offsetof(Limits, resets_per_s), false, 1, 1 << 20, 1000},
    {"unsent_bytes", offsetof(Limits, unsent_bytes), false, 1 << 16, 1e12, 1 << 26},
    {"total_unsent_bytes", offsetof(Limits, total_unsent_bytes), false, 1 << 20, 1e15, 1 << 30},
    {"handshake_s", offsetof(Limits, handshake_ms), true, 0.1, 1e6, 10},
    {"header_s", offsetof(Limits, header_ms), true, 0.1, 1e6, 30},
    {"body_s", offsetof(Limits, body_ms), true, 0.1, 1e6, 30},
    {"idle_s", offsetof(Limits, idle_ms), true, 0, 1e9, 3600},
    {"unsent_s", offsetof(Limits, unsent_ms), true, 0.1, 1e6, 60},
};

enum { LIMITS = sizeof table / sizeof *table };

static void put(Limits *limits, size_t index, double value)
{
    uint64_t *at = (uint64_t *)((char *)limits + table[index].offset);
    *at = (uint64_t)(table[index].is_time ? value * 1000 + 0.999 : value);
}

Limits limits_default(void)
{
    Limits limits;
    for (size_t i = 0; i < LIMITS; i++)
        put(&limits, i, table[i].usual);
    return limits;
}

bool limits_set(Limits *limits, Slice name, double value, Problem *problem)
{
    for (size_t i = 0; i < LIMITS; i++) {
        if (!slice_is(name, table[i].name))
            continue;
        if (!(value >= table[i].min_bytes && value <= table[i].most))
            return problem_set(problem, PROBLEM_INVALID, "the limit %s is %g, but must be between %g and %g",
                table[i].name, value, table[i].min_bytes, table[i].most);
        put(limits, i, value);
        return true;
    }
    return problem_set(problem, PROBLEM_INVALID, "there is no limit '%.*s'", SLICE_ARGS(name));
}
