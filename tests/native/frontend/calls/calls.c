/* Makes calls of the frontend as its arguments say, with whatever core it is told to load, and prints what comes back. */
#include "admin/repository.h"
#include "thread_pool/memory_trim.h"
#include "calls/call.h"
#include "calls/response_cache.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { OPTIONS = 32, DIMS = 128, VALUE = 1 << 20 };

typedef struct {
    Server *server;
    SharedMemory *memory;
    Tracing *tracing;
    CallsSettings settings;
    Calls *calls;
    Call *call;
    CallTensor *output;
    bool refused;
} World;

static const TraceSteps steps = {"HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static unsigned waited_for;

static bool say(bool right, Problem *problem)
{
    if (!right)
        printf("problem %d %s\n", problem_status(problem->kind), problem_text(problem));
    problem_clear(problem);
    return right;
}

static void print_bytes(const void *bytes, size_t size)
{
    for (size_t i = 0; i < size && i < 256; i++)
        printf("%02x", ((const unsigned char *)bytes)[i]);
}

static void print_output(const ResponseOutput *output)
{
    printf("  output %s %s [", output->name, datatype_name(output->datatype));
    for (uint64_t i = 0; i < output->dims; i++)
        printf("%s%" PRId64, i ? "," : "", output->shape[i]);
    printf("] %zu%s ", output->size, output->in_region ? " in region" : "");
    if (!output->in_region)
        print_bytes(output->bytes, output->size);
    printf("\n");
}

static void print_parameter(const ResponseParameter *parameter)
{
    printf("  parameter %s ", parameter->name);
    if (parameter->type == PARAMETER_STRING)
        printf("'%s'\n", parameter->string);
    else if (parameter->type == PARAMETER_INT)
        printf("%" PRId64 "\n", parameter->integer);
    else if (parameter->type == PARAMETER_BOOL)
        printf("%s\n", parameter->boolean ? "true" : "false");
    else
        printf("%.17g\n", parameter->number);
}

static void on_response(Call *call, CallResponse *response)
{
    (void)call;
    bool final = response->final;
    pthread_mutex_lock(&lock);
    printf("answer%s%s model=%s id=%s version=%" PRId64 "\n", final ? " final" : "", response->empty ? " empty" : "",
        response->model, response->id, response->version);
    if (response->problem.kind)
        printf("  problem %d %s\n", problem_status(response->problem.kind), problem_text(&response->problem));
    for (size_t i = 0; i < response->output_count; i++)
        print_output(&response->outputs[i]);
    for (size_t i = 0; i < response->parameter_count; i++)
        print_parameter(&response->parameters[i]);
    pthread_mutex_unlock(&lock);
    call_response_release(response);
    pthread_mutex_lock(&lock);
    waited_for -= final;
    pthread_cond_signal(&ended);
    pthread_mutex_unlock(&lock);
}

/* Bytes written in hexadecimal, in the call's memory. */
static Slice bytes_of(World *world, const char *hex)
{
    size_t size = strlen(hex) / 2;
    char *bytes = call_memory(world->call, size);
    for (size_t i = 0; i < size; i++) {
        unsigned byte;
        sscanf(hex + 2 * i, "%2x", &byte);
        bytes[i] = (char)byte;
    }
    return (Slice){bytes, size};
}

static Slice part(Slice *rest)
{
    Slice one = {0};
    slice_split(rest, ':', &one);
    return one;
}

static uint64_t number(Slice text)
{
    uint64_t value = 0;
    slice_unsigned(text, &value);
    return value;
}

static bool add_input(World *world, Slice rest, Problem *problem)
{
    Slice name = part(&rest), datatype = part(&rest), dim;
    int64_t shape[DIMS];
    size_t dims = 0;
    while (rest.size && dims < DIMS && slice_split(&rest, ',', &dim))
        slice_signed(dim, &shape[dims++]);
    return call_input(world->call, name, datatype, shape, dims, problem) != NULL;
}

static bool add_parameter(World *world, Slice rest, Problem *problem)
{
    Slice name = part(&rest), type = part(&rest);
    CallParameter value = {.type = PARAMETER_STRING, .string = rest};
    int64_t integer = 0;
    slice_signed(rest, &integer);
    if (slice_is(type, "i"))
        value = (CallParameter){.type = PARAMETER_INT, .integer = integer};
    else if (slice_is(type, "b"))
        value = (CallParameter){.type = PARAMETER_BOOL, .boolean = slice_is(rest, "true")};
    else if (slice_is(type, "d"))
        value = (CallParameter){.type = PARAMETER_DOUBLE, .number = strtod(rest.start, NULL)};
    return call_parameter(world->call, name, &value, problem);
}

static void tell_region(void *user, const SharedRegionStatus *status)
{
    (void)user;
    printf("region %.*s %.*s %" PRIu64 " %" PRIu64 "\n", SLICE_ARGS(status->name), SLICE_ARGS(status->key),
        status->offset, status->size);
}

static bool handle_regions(World *world, Slice verb, Slice rest, Problem *problem)
{
    Slice name = part(&rest), key;
    if (slice_is(verb, "register")) {
        key = part(&rest);
        uint64_t offset = number(part(&rest));
        return shared_memory_register(world->memory, name, key, offset, number(rest), problem);
    }
    if (slice_is(verb, "cuda"))
        return shared_memory_register_cuda(world->memory, name, SLICE("0"), 0, 4, problem);
    if (slice_is(verb, "resize")) /* to so many bytes: a path */
        return truncate(rest.start, (off_t)number(name)) == 0;
    if (slice_is(verb, "unregister"))
        return shared_memory_unregister(world->memory, false, name, problem);
    if (slice_is(verb, "regions"))
        return shared_memory_status(world->memory, false, name, tell_region, NULL, problem);
    uint64_t offset = number(part(&rest));
    if (slice_is(verb, "region"))
        return call_input_region(world->call, name, offset, number(rest), problem);
    return call_output_region(world->call, world->output, name, offset, number(rest), problem);
}

static bool start(World *world, Problem *problem)
{
    pthread_mutex_lock(&lock);
    waited_for++;
    pthread_mutex_unlock(&lock);
    if (call_start(world->call, on_response, problem))
        return true;
    waited_for--;
    return false;
}

static void wait_all(void)
{
    pthread_mutex_lock(&lock);
    while (waited_for)
        pthread_cond_wait(&ended, &lock);
    pthread_mutex_unlock(&lock);
}

static bool new_call(World *world, Slice rest, Problem *problem)
{
    if (world->call)
        call_unref(world->call);
    world->call = calls_acquire(world->calls);
    world->output = NULL;
    Slice model;
    slice_split(&rest, '/', &model);
    return call_model(world->call, model, rest, problem);
}

/* So many calls at a time. */
static void rush(World *world, uint64_t count)
{
    Call **all = calloc(count, sizeof(Call *));
    for (uint64_t i = 0; i < count; i++)
        all[i] = calls_acquire(world->calls);
    for (uint64_t i = 0; i < count; i++)
        call_unref(all[i]);
    free(all);
}

static uint64_t looks;

static TRITONSERVER_Error *count_look(TRITONSERVER_Server *server, bool *ready)
{
    (void)server;
    looks++;
    *ready = true;
    return NULL;
}

/* Have so many look whether the server is ready, and say whether the core was asked less often. */
static void have_many_look(World *world, uint64_t count)
{
    triton.ServerIsReady = count_look;
    for (uint64_t i = 0; i < count; i++)
        if (!server_was_recently_ready(world->server))
            printf("not ready\n");
    printf("looks %s\n", looks < count ? "fewer" : "as many");
    server_force_unready(world->server, true);
    printf("held %d\n", server_was_recently_ready(world->server));
    server_force_unready(world->server, false);
}

/* Calls are cached from now on, in so many bytes. */
static bool use_cache(World *world, uint64_t bytes, Problem *problem)
{
    calls_free(world->calls);
    world->settings.cache = response_cache_new(world->server, bytes, problem);
    world->calls = calls_new(&world->settings, 16, problem);
    return world->settings.cache && world->calls;
}

static bool tell_cache(World *world)
{
    ResponseCacheCounts counts = response_cache_counts(world->settings.cache);
    printf("hits %" PRIu64 " misses %" PRIu64 " entries %" PRIu64 "\n", counts.hits, counts.misses, counts.entries);
    return counts.bytes > 0 || counts.entries == 0;
}

static bool act(World *world, Slice verb, Slice rest, Problem *problem)
{
    Slice data;
    if (slice_is(verb, "cache"))
        return use_cache(world, number(rest), problem);
    if (slice_is(verb, "counts"))
        return tell_cache(world);
    if (slice_is(verb, "load"))
        return repository_load(world->server, SLICE(""), rest, NULL, 0, problem);
    if (slice_is(verb, "unload"))
        return repository_unload(world->server, SLICE(""), rest, false, problem);
    if (slice_is(verb, "rush")) {
        rush(world, number(rest));
        return true;
    }
    if (slice_is(verb, "look")) {
        bool more = memory_trim_run();
        printf("kept %" PRIu64 "%s\n", calls_idle(world->calls), more ? " more" : "");
        return true;
    }
    if (slice_is(verb, "watch")) {
        have_many_look(world, number(rest));
        return true;
    }
    if (slice_is(verb, "model"))
        return new_call(world, rest, problem);
    if (slice_is(verb, "id"))
        return call_id(world->call, rest, problem);
    if (slice_is(verb, "param"))
        return add_parameter(world, rest, problem);
    if (slice_is(verb, "header"))
        return call_header(world->call, part(&rest), rest, problem);
    if (slice_is(verb, "trace")) {
        data = part(&rest);
        call_origin_header(world->call, data, rest);
        return true;
    }
    if (slice_is(verb, "input"))
        return add_input(world, rest, problem);
    if (slice_is(verb, "data") || slice_is(verb, "raw")) {
        data = bytes_of(world, rest.start);
        return slice_is(verb, "raw") ? call_input_raw(world->call, data.start, data.size, problem)
                                     : call_input_data(world->call, data.start, data.size, problem);
    }
    if (slice_is(verb, "output"))
        return (world->output = call_output(world->call, rest, problem)) != NULL;
    if (slice_is(verb, "classes"))
        return call_output_classes(world->call, world->output, (int64_t)number(rest), problem);
    if (slice_is(verb, "start"))
        return start(world, problem);
    if (slice_is(verb, "cancel")) {
        call_cancel(world->call);
        return true;
    }
    return handle_regions(world, verb, rest, problem);
}

int main(int count, char **arguments)
{
    World world = {0};
    Option options[OPTIONS];
    size_t option_count = 0;
    int at = 2;
    for (; at < count && strncmp(arguments[at], "--", 2) == 0; at++) {
        char *equals = strchr(arguments[at], '=');
        *equals = '\0';
        options[option_count++] = (Option){arguments[at] + 2, equals + 1};
    }
    Problem problem = {0};
    world.server = server_start(arguments[1], options, option_count, &problem);
    world.memory = shared_memory_new(2, -1, &problem);
    if (world.server)
        world.tracing = tracing_new(world.server, &problem);
    if (world.tracing == NULL || world.memory == NULL) {
        say(false, &problem);
        shared_memory_free(world.memory);
        server_free(world.server);
        return 1;
    }
    world.settings = calls_settings(world.server, world.memory);
    world.settings.tracing = world.tracing;
    world.settings.steps = &steps;
    world.settings.output_bytes = VALUE;
    world.settings.inputs = 8;
    world.calls = calls_new(&world.settings, 16, &problem);
    for (; at < count; at++) {
        char *equals = strchr(arguments[at], '=');
        Slice verb = slice_of(arguments[at]), rest = slice_of(equals ? equals + 1 : "");
        if (equals)
            verb.size = (size_t)(equals - arguments[at]);
        if (slice_is(verb, "wait"))
            wait_all();
        else if (slice_is(verb, "model"))
            world.refused = !say(new_call(&world, rest, &problem), &problem);
        else if (!world.refused)
            world.refused = !say(act(&world, verb, rest, &problem), &problem);
    }
    wait_all();
    if (world.call)
        call_unref(world.call);
    calls_free(world.calls);
    say(server_stop(world.server, &problem), &problem);
    printf("running %" PRIu64 "\n", calls_running());
    response_cache_free(world.settings.cache);
    tracing_free(world.tracing);
    shared_memory_free(world.memory);
    server_free(world.server);
    return 0;
}
