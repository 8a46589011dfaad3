#include "tracing/settings.h"

#include "common/json_writer.h"

#include <inttypes.h>
#include <stdlib.h>

/* Triton's defaults. */
enum { RATE_DEFAULT = 1000, BATCH_DEFAULT = 512, DELAY_DEFAULT = 5000, QUEUE_DEFAULT = 2048 };
static const char url_default[] = "http://localhost:4318/v1/traces";

static const char *const field_names[FIELDS] = {"trace_level", "trace_rate", "trace_count", "log_frequency"};

static const struct {
    const char *name;
    unsigned bit;
} levels[] = {{"TIMESTAMPS", TRACE_TIMESTAMPS}, {"TENSORS", TRACE_TENSORS}};

/* ── values ─────────────────────────────────────────────────────────────────────────────────────── */

/* Add a level to `level`. "OFF" adds nothing. */
static bool read_level(Slice value, int64_t *level, Problem *problem)
{
    if (slice_is(value, "OFF"))
        return true;
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (slice_is(value, levels[i].name)) {
            *level |= levels[i].bit;
            return true;
        }
    return problem_set(problem, PROBLEM_INVALID, "there is no trace level '%.*s', only OFF, TIMESTAMPS and TENSORS",
        value.size < 100 ? (int)value.size : 100, value.start);
}

static bool read_number(int field, Slice value, int64_t *number, Problem *problem)
{
    int64_t least = field == COUNT ? -1 : field == RATE ? 1 : 0;
    int64_t most = field == COUNT ? INT32_MAX : UINT32_MAX;
    bool read = slice_signed(value, number);
    if (read && *number >= least && *number <= most)
        return true;
    bool digits = value.size > 1 || (value.size && *value.start >= '0' && *value.start <= '9');
    for (size_t i = 1; i < value.size; i++)
        digits = digits && value.start[i] >= '0' && value.start[i] <= '9';
    const char *name = field_names[field];
    if (read && field == COUNT && *number < least)
        return problem_set(
            problem, PROBLEM_INVALID, "Unable to parse '%s'. Expecting value >= -1, got:%" PRId64, name, *number);
    int shown = value.size < 100 ? (int)value.size : 100;
    if (field == RATE && read && *number == 0)
        return problem_set(
            problem, PROBLEM_INVALID, "Attempting to set invalid trace setting :sample rate must be non-zero");
    if (!digits)
        return problem_set(problem, PROBLEM_INVALID, "Unable to parse '%s', got: %.*s", name, shown, value.start);
    return problem_set(problem, PROBLEM_INVALID,
        "Unable to parse '%s', value is out of range [ %" PRId64 ", %" PRId64 " ], got: %.*s", name,
        field == COUNT ? least : 0, most, shown, value.start);
}

static bool read_field(int field, const Slice *values, size_t count, int64_t *value, Problem *problem)
{
    *value = 0;
    if (field != LEVEL) {
        if (count != 1)
            return problem_set(problem, PROBLEM_INVALID, "expect only 1 value for '%s'", field_names[field]);
        return read_number(field, values[0], value, problem);
    }
    for (size_t i = 0; i < count; i++) {
        if (slice_is(values[i], "OFF") && count > 1)
            return problem_set(problem, PROBLEM_INVALID, "Expect only one trace level 'OFF' is specified");
        if (!read_level(values[i], value, problem))
            return false;
    }
    return true;
}

static const TraceSetting defaults = {.field = {[RATE] = RATE_DEFAULT, [COUNT] = -1}};

/* ── the command line ───────────────────────────────────────────────────────────────────────────── */

static bool replace(char **kept, Slice value, Problem *problem)
{
    free(*kept);
    *kept = slice_copy(value);
    return *kept ? true : problem_no_memory(problem);
}

static bool parse_amount(Slice name, Slice value, int64_t *amount, Problem *problem)
{
    if (slice_signed(value, amount) && *amount > 0 && *amount <= INT32_MAX)
        return true;
    return problem_set(problem, PROBLEM_INVALID, "trace-config %.*s is '%.*s', but must be a number", SLICE_ARGS(name),
        SLICE_ARGS(value));
}

static bool set_unknown(Slice mode, Slice name, Problem *problem)
{
    return problem_set(problem, PROBLEM_INVALID, "trace-config: there is no setting '%.*s'%s%.*s", SLICE_ARGS(name),
        mode.size ? " of mode " : "", SLICE_ARGS(mode));
}

static bool parse_opentelemetry(TraceSettings *settings, Slice name, Slice value, Problem *problem)
{
    if (slice_is(name, "url"))
        return replace(&settings->url, value, problem);
    if (slice_is(name, "resource")) {
        buffer_put_string(&settings->resource, settings->resource.size ? "," : "");
        buffer_put_slice(&settings->resource, value);
        return settings->resource.failed ? problem_no_memory(problem) : true;
    }
    if (slice_is(name, "bsp_max_export_batch_size"))
        return parse_amount(name, value, &settings->batch, problem);
    if (slice_is(name, "bsp_schedule_delay"))
        return parse_amount(name, value, &settings->delay_ms, problem);
    if (slice_is(name, "bsp_max_queue_size"))
        return parse_amount(name, value, &settings->queue, problem);
    return set_unknown(SLICE("opentelemetry"), name, problem);
}

static bool parse_mode(TraceSettings *settings, Slice value, Problem *problem)
{
    settings->opentelemetry = slice_is(value, "opentelemetry");
    if (settings->opentelemetry || slice_is(value, "triton"))
        return true;
    return problem_set(problem, PROBLEM_INVALID, "trace-config mode is '%.*s', but must be triton or opentelemetry",
        SLICE_ARGS(value));
}

static bool parse_one(TraceSettings *settings, Slice mode, Slice name, Slice value, Problem *problem)
{
    TraceSetting *server = &settings->server;
    if (slice_is(mode, "opentelemetry"))
        return parse_opentelemetry(settings, name, value, problem);
    if (slice_is(name, "file"))
        return replace(&settings->file, value, problem);
    if (slice_is(name, "log-frequency"))
        return read_number(FREQUENCY, value, &server->field[FREQUENCY], problem);
    if (mode.size)
        return set_unknown(mode, name, problem);
    if (slice_is(name, "mode"))
        return parse_mode(settings, value, problem);
    if (slice_is(name, "level"))
        return slice_is(value, "OFF") ? (server->field[LEVEL] = 0, true)
                                      : read_level(value, &server->field[LEVEL], problem);
    if (slice_is(name, "rate"))
        return read_number(RATE, value, &server->field[RATE], problem);
    if (slice_is(name, "count"))
        return read_number(COUNT, value, &server->field[COUNT], problem);
    return set_unknown(mode, name, problem);
}

static bool has_file(const TraceSettings *settings, int64_t level, Problem *problem)
{
    if (level == 0 || settings->opentelemetry || (settings->file && *settings->file))
        return true;
    return problem_set(
        problem, PROBLEM_INVALID, "Attempting to set invalid trace setting :trace file name is not given");
}

bool trace_settings_parse(TraceSettings *settings, Slice config, Problem *problem)
{
    *settings =
        (TraceSettings){.server = defaults, .batch = BATCH_DEFAULT, .delay_ms = DELAY_DEFAULT, .queue = QUEUE_DEFAULT};
    if (!replace(&settings->url, slice_of(url_default), problem))
        return false;
    Slice line;
    while (slice_split(&config, '\n', &line)) {
        Slice rest = line, name, mode = {0};
        if (line.size == 0)
            continue;
        slice_split(&rest, '=', &name);
        Slice before = name, first;
        slice_split(&before, ',', &first);
        if (before.start) {
            mode = first;
            name = before;
        }
        if (!parse_one(settings, mode, name, rest, problem))
            return false;
    }
    return has_file(settings, settings->server.field[LEVEL], problem);
}

void trace_settings_free(TraceSettings *settings)
{
    size_t position = 0;
    Slice name;
    void *setting;
    while (name_table_next(&settings->models, &position, &name, &setting))
        free(setting);
    name_table_free(&settings->models);
    buffer_free(&settings->resource);
    free(settings->file);
    free(settings->url);
}

/* ── use ────────────────────────────────────────────────────────────────────────────────────────── */

/* Returns the setting that a field's value is inherited from: the model's, or the server's. */
static const TraceSetting *setting_of(const TraceSettings *settings, const TraceSetting *model, int field)
{
    return model && model->own[field] ? model : &settings->server;
}

bool trace_settings_any(const TraceSettings *settings)
{
    if (settings->server.field[LEVEL])
        return true;
    size_t position = 0;
    Slice name;
    void *setting;
    while (name_table_next(&settings->models, &position, &name, &setting))
        if (((const TraceSetting *)setting)->own[LEVEL] && ((const TraceSetting *)setting)->field[LEVEL])
            return true;
    return false;
}

unsigned trace_settings_sample(TraceSettings *settings, const char *model, bool forced, int64_t *frequency)
{
    TraceSetting *own = name_table_get(&settings->models, slice_of(model));
    int64_t level = setting_of(settings, own, LEVEL)->field[LEVEL];
    TraceSetting *counted = own ? own : &settings->server;
    int64_t *count = own && own->own[COUNT] ? &own->field[COUNT] : &settings->server.field[COUNT];
    *frequency = setting_of(settings, own, FREQUENCY)->field[FREQUENCY];
    if (level == 0 || *count == 0)
        return 0;
    bool due = ++counted->seen % (uint64_t)setting_of(settings, own, RATE)->field[RATE] == 0;
    if (!due && !forced)
        return 0;
    *count -= *count > 0;
    return (unsigned)level;
}

bool trace_settings_write(const TraceSettings *settings, Slice model, Buffer *json, Problem *problem)
{
    const TraceSetting *own = model.size ? name_table_get(&settings->models, model) : NULL;
    int64_t level = setting_of(settings, own, LEVEL)->field[LEVEL];
    buffer_put_string(json, level ? "{\"trace_level\":[" : "{\"trace_level\":[\"OFF\"");
    bool more = false;
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (level & levels[i].bit) {
            buffer_format(json, "%s\"%s\"", more ? "," : "", levels[i].name);
            more = true;
        }
    buffer_put_string(json, "]");
    for (int field = RATE; field < (settings->opentelemetry ? FREQUENCY : FIELDS); field++)
        buffer_format(
            json, ",\"%s\":\"%" PRId64 "\"", field_names[field], setting_of(settings, own, field)->field[field]);
    if (settings->opentelemetry) {
        buffer_put_string(json, ",\"trace_mode\":\"opentelemetry\",\"url\":");
        json_put_sanitized(json, slice_of(settings->url));
        if (settings->resource.size) {
            buffer_put_string(json, ",\"resource\":");
            json_put_sanitized(json, buffer_slice(&settings->resource));
        }
        buffer_format(json,
            ",\"bsp_max_export_batch_size\":\"%" PRId64 "\",\"bsp_schedule_delay\":\"%" PRId64
            "\",\"bsp_max_queue_size\":\"%" PRId64 "\"}",
            settings->batch, settings->delay_ms, settings->queue);
    } else {
        buffer_put_string(json, ",\"trace_file\":");
        json_put_sanitized(json, slice_of(settings->file ? settings->file : ""));
        buffer_put_string(json, ",\"trace_mode\":\"triton\"}");
    }
    return json->failed ? problem_no_memory(problem) : true;
}

/* ── changes ────────────────────────────────────────────────────────────────────────────────────── */

static bool change(
    const TraceSettings *settings, TraceSetting *changed, bool of_server, const TraceChange *wanted, Problem *problem)
{
    if (slice_is(wanted->name, "trace_file"))
        return problem_set(
            problem, PROBLEM_UNSUPPORTED, "trace file location can not be updated through network protocol");
    if (slice_is(wanted->name, "trace_mode"))
        return wanted->count == 1 && slice_is(wanted->values[0], settings->opentelemetry ? "opentelemetry" : "triton")
            ? true
            : problem_set(problem, PROBLEM_UNSUPPORTED, "trace mode can not be updated through network protocol");
    for (int field = 0; field < FIELDS; field++) {
        if (!slice_is(wanted->name, field_names[field]))
            continue;
        changed->own[field] = wanted->count > 0;
        if (wanted->count)
            return read_field(field, wanted->values, wanted->count, &changed->field[field], problem);
        if (of_server)
            changed->field[field] = defaults.field[field];
        return true;
    }
    return problem_set(problem, PROBLEM_INVALID, "there is no trace setting '%.*s'",
        wanted->name.size < 100 ? (int)wanted->name.size : 100, wanted->name.start ? wanted->name.start : "");
}

bool trace_settings_apply(
    TraceSettings *settings, Slice model, const TraceChange *changes, size_t count, Problem *problem)
{
    TraceSetting *kept = model.size ? name_table_get(&settings->models, model) : &settings->server;
    TraceSetting changed = {0};
    if (model.size == 0)
        changed = settings->server;
    else if (kept)
        changed = *kept;
    for (size_t i = 0; i < count; i++)
        if (!change(settings, &changed, model.size == 0, &changes[i], problem))
            return false;
    bool levelled = model.size == 0 || changed.own[LEVEL];
    if (levelled && !has_file(settings, changed.field[LEVEL], problem))
        return false;
    if (count == 0)
        return true;
    if (kept == NULL) {
        kept = malloc(sizeof *kept);
        if (kept == NULL || !name_table_put(&settings->models, model, kept)) {
            free(kept);
            return problem_no_memory(problem);
        }
    }
    *kept = changed;
    kept->seen = 0;
    return true;
}
