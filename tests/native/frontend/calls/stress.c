/* Many calls in many threads, some of them cancelled: every one has to end, once. Prints how many did how. */
#include "calls/call.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { CLIENTS = 4, KEPT = 8 };

/* What a call's client keeps in it. */
typedef struct {
    unsigned responses;
    bool final;
} State;

static Calls *calls;
static unsigned rounds;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned under_way, finals, responses, refused; /* guarded by it, as is what is kept */
static CallResponse *kept[KEPT];

static void fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    abort();
}

/* Keep it for a while, so that it is released by another thread; the one that was kept there is given back. */
static void on_response(Call *call, CallResponse *response)
{
    State *state = call->state;
    if (state->final)
        fail("an answer came after the last one");
    state->responses++;
    state->final = response->final;
    bool final = response->final;
    if (response->problem.kind == PROBLEM_NONE && response->output_count &&
        response->outputs[0].size != call->inputs[0].given)
        fail("an output has another size than its input");
    pthread_mutex_lock(&lock);
    CallResponse *former = kept[responses++ % KEPT];
    kept[(responses - 1) % KEPT] = response;
    pthread_mutex_unlock(&lock);
    if (former)
        call_response_release(former);
    if (!final)
        return;
    call_unref(call);
    pthread_mutex_lock(&lock);
    finals++;
    under_way--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static bool prepare(Call *call, const char *model, unsigned number, Problem *problem)
{
    int64_t shape[] = {number % 3 == 0 ? 50000 : 16};
    size_t size = (size_t)shape[0] * sizeof(float);
    char *bytes = buffer_extend(&call->body, size);
    CallParameter count = {.type = PARAMETER_INT, .integer = number % 7};
    if (bytes == NULL)
        return problem_no_memory(problem);
    memset(bytes, (int)number, size);
    return call_model(call, slice_of(model), SLICE(""), problem) && call_id(call, SLICE("7"), problem) &&
        call_parameter(call, SLICE("answers"), &count, problem) &&
        call_input(call, SLICE("IN"), SLICE("FP32"), shape, 1, problem) &&
        call_input_data(call, bytes, size / 2, problem) &&
        call_input_data(call, bytes + size / 2, size - size / 2, problem);
}

static void one(unsigned number)
{
    static const char *const models[] = {
        "echo", "thread", "early", "many", "racing", "held", "refused", "failing", "huge"};
    const char *model = models[number % (sizeof models / sizeof *models)];
    Problem problem = {0};
    Call *call = calls_acquire(calls);
    if (call == NULL || !prepare(call, model, number, &problem))
        fail(problem_text(&problem));
    call_ref(call);
    pthread_mutex_lock(&lock);
    under_way++;
    pthread_mutex_unlock(&lock);
    if (number % 5 == 0)
        call_cancel(call);
    if (!call_start(call, on_response, &problem)) {
        problem_clear(&problem);
        call_unref(call);
        pthread_mutex_lock(&lock);
        under_way--;
        refused++;
        pthread_mutex_unlock(&lock);
    }
    if (number % 2 || strcmp(model, "held") == 0)
        call_cancel(call);
    call_unref(call);
}

static void *client(void *argument)
{
    unsigned first = (unsigned)(uintptr_t)argument;
    for (unsigned i = 0; i < rounds; i++)
        one(first + i * CLIENTS);
    return NULL;
}

int main(int count, char **arguments)
{
    if (count != 3)
        return 2;
    rounds = (unsigned)strtoul(arguments[2], NULL, 10) / CLIENTS;
    Problem problem = {0};
    Server *server = server_start(arguments[1], NULL, 0, &problem);
    SharedMemory *memory = shared_memory_new(1024, -1, &problem);
    if (server == NULL || memory == NULL)
        fail(problem_text(&problem));
    CallsSettings settings = calls_settings(server, memory);
    settings.output_bytes = 1 << 20;
    settings.kept_calls = 4;
    calls = calls_new(&settings, sizeof(State), &problem);
    pthread_t clients[CLIENTS];
    for (unsigned i = 0; i < CLIENTS; i++)
        pthread_create(&clients[i], NULL, client, (void *)(uintptr_t)i);
    for (unsigned i = 0; i < CLIENTS; i++)
        pthread_join(clients[i], NULL);
    pthread_mutex_lock(&lock);
    while (under_way)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    server_stop(server, &problem);
    for (size_t i = 0; i < KEPT; i++)
        if (kept[i])
            call_response_release(kept[i]);
    calls_free(calls);
    printf("finals %u refused %u running %" PRIu64 "\n", finals, refused, calls_running());
    shared_memory_free(memory);
    server_free(server);
    return 0;
}
