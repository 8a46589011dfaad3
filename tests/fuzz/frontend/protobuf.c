/* A ModelInferRequest, which becomes a call; the core of tests/native/frontend/calls/fake_core answers it. */
#include "calls/pool.h"
#include "grpc/infer.h"

#include <stdio.h>
#include <stdlib.h>

/* The answer is looked at by nobody; the call's last reference has gone when it has come. */
static void on_response(Call *call, CallResponse *response)
{
    bool final = response->final;
    call_response_release(response);
    if (final)
        call_unref(call);
}

static Calls *calls_of_core(void)
{
    static Calls *calls;
    Problem problem = {0};
    if (calls)
        return calls;
    Server *server = server_start(FUZZ_CORE, NULL, 0, &problem);
    SharedMemory *memory = shared_memory_new(1024, -1, &problem);
    CallsSettings settings = calls_settings(server, memory);
    settings.output_bytes = 1 << 20;
    calls = server ? calls_new(&settings, 0, &problem) : NULL;
    if (calls == NULL) {
        fprintf(stderr, "%s\n", problem_text(&problem));
        abort();
    }
    return calls;
}

/* Have it answered, if it is right, and let go of it. */
static void end(Call *call, bool right, Problem *problem)
{
    if (right) {
        call_ref(call);
        if (!call_start(call, on_response, problem))
            call_unref(call);
    }
    call_unref(call);
    problem_clear(problem);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Problem problem = {0};
    InferOptions options = {0};
    Call *call = calls_acquire(calls_of_core());
    buffer_put(&call->body, (const char *)data, size);
    end(call, infer_read(call, 64, &options, &problem), &problem);
    return 0;
}
