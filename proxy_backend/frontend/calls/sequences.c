#include "calls/sequences.h"

#include "common/clock.h"
#include "base/name_table.h"
#include "common/buffer.h"
#include "json/reader.h"

#include <stdlib.h>

enum {
    DEFAULT_IDLE_MS = 1000, /* default of the core */
    MAX_SEQUENCES = 1 << 16, /* more than any core has slots for */
};

struct Sequence {
    unsigned running; /* requests in the core */
    bool ended; /* removed from the table; freed with its last request */
    uint64_t last_ms, idle_ms;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static NameTable sequences; /* by model and sequence id */
static bool closed; /* no new sequences, since another process replaces this one and could not continue them */

/* ── idle limits ──────────────────────────────────────────────────────────────────────────────────────── */

static bool read_batching(Json *json, Buffer *scratch, uint64_t *idle_ms)
{
    Slice key;
    if (!json_object(json))
        return false;
    while (json_member(json, scratch, &key)) {
        uint64_t microseconds = 0;
        if (!slice_is(key, "max_sequence_idle_microseconds") || !json_unsigned(json, &microseconds))
            json_skip(json);
        else if (microseconds)
            *idle_ms = microseconds / 1000 + 1;
    }
    return !json_failed(json);
}

/* Returns the idle limit in a model's configuration, or 0 if the model has no sequences. */
static uint64_t idle_ms_of(Slice configuration)
{
    const JsonLimits limits = {.depth = 64, .values = 1 << 20, .string_bytes = UINT64_MAX};
    Json json = json_read(configuration, &limits);
    Buffer scratch = {0};
    Slice key;
    uint64_t idle_ms = 0;
    if (json_object(&json))
        while (json_member(&json, &scratch, &key)) {
            if (!slice_is(key, "sequence_batching")) {
                json_skip(&json);
            } else {
                idle_ms = DEFAULT_IDLE_MS;
                if (!read_batching(&json, &scratch, &idle_ms))
                    break;
            }
        }
    buffer_free(&scratch);
    return idle_ms;
}

static uint64_t query_idle_ms(Server *server, const char *model)
{
    Problem problem = {0};
    TRITONSERVER_Message *message = NULL;
    const char *text = NULL;
    size_t size = 0;
    uint64_t idle_ms = 0;
    if (api_succeeded(triton.ServerModelConfig(server->server, model, -1, 1, &message), &problem)) {
        if (api_succeeded(triton.MessageSerializeToJson(message, &text, &size), &problem))
            idle_ms = idle_ms_of((Slice){text, size});
        triton.MessageDelete(message);
    }
    problem_clear(&problem);
    return idle_ms;
}

/* ── the table, with the lock held ────────────────────────────────────────────────────────────────────── */

static bool is_over(const Sequence *sequence, uint64_t now_ms)
{
    return sequence->running == 0 && now_ms - sequence->last_ms > sequence->idle_ms;
}

static void forget(Slice key, Sequence *sequence)
{
    name_table_remove(&sequences, key);
    sequence->ended = true;
    if (sequence->running == 0)
        free(sequence);
}

/* Remove the sequences that are over. Check a position again after a removal, since later entries may have moved to
 * it.
 */
static void sweep(void)
{
    uint64_t now_ms = clock_ms();
    size_t position = 0;
    Slice key;
    void *value;
    while (name_table_next(&sequences, &position, &key, &value))
        if (is_over(value, now_ms)) {
            forget(key, value);
            position--;
        }
}

static Sequence *find_or_begin(Slice key, bool begins, uint64_t idle_ms)
{
    Sequence *sequence = name_table_get(&sequences, key);
    if (sequence || !begins || idle_ms == 0)
        return sequence;
    if (sequences.count >= MAX_SEQUENCES)
        sweep();
    sequence = sequences.count < MAX_SEQUENCES ? calloc(1, sizeof *sequence) : NULL;
    if (sequence && !name_table_put(&sequences, key, sequence)) {
        free(sequence);
        return NULL;
    }
    return sequence;
}

/* ── public functions ─────────────────────────────────────────────────────────────────────────────────── */

bool sequence_request(Server *server, const char *model, const char *id, uint32_t flags, Sequence **sequence)
{
    Buffer key = {0};
    bool begins = flags & SEQUENCE_START, may = true;
    uint64_t idle_ms = begins ? query_idle_ms(server, model) : 0;
    uint64_t hash = name_table_hash(slice_of(id)); /* Hash the id, which may have any length. */
    *sequence = NULL;
    buffer_put_string(&key, model);
    buffer_put(&key, (const char *)&hash, sizeof hash);
    if (key.failed) {
        buffer_free(&key);
        return true;
    }
    pthread_mutex_lock(&lock);
    Sequence *found = find_or_begin(buffer_slice(&key), begins && !closed, idle_ms);
    may = found || !closed || idle_ms == 0 || (flags & SEQUENCE_END);
    if (found) {
        found->running++;
        found->last_ms = clock_ms();
        if (idle_ms)
            found->idle_ms = idle_ms;
        if (flags & SEQUENCE_END)
            forget(buffer_slice(&key), found);
    }
    pthread_mutex_unlock(&lock);
    buffer_free(&key);
    *sequence = found;
    return may;
}

uint64_t sequences_close(void)
{
    pthread_mutex_lock(&lock);
    sweep();
    uint64_t count = sequences.count;
    closed |= count == 0;
    pthread_mutex_unlock(&lock);
    return count;
}

void sequence_request_done(Sequence *sequence)
{
    if (sequence == NULL)
        return;
    pthread_mutex_lock(&lock);
    sequence->last_ms = clock_ms();
    if (--sequence->running == 0 && sequence->ended)
        free(sequence);
    pthread_mutex_unlock(&lock);
}

uint64_t sequences_count(void)
{
    pthread_mutex_lock(&lock);
    sweep();
    uint64_t count = sequences.count;
    pthread_mutex_unlock(&lock);
    return count;
}
