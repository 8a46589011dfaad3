/* The inference: which thread answers, when, how often, and whether the request is released before. */
#include "fake_core.h"

static void *race(void *argument)
{
    const TRITONSERVER_InferenceRequest *request = argument;
    request->complete(core_respond(request), 0, request->userp);
    return NULL;
}

static void answer_racing(TRITONSERVER_InferenceRequest *request)
{
    pthread_t racers[RACERS];
    for (size_t i = 0; i < RACERS; i++)
        pthread_create(&racers[i], NULL, race, request);
    for (size_t i = 0; i < RACERS; i++)
        pthread_join(racers[i], NULL);
    request->complete(NULL, RESPONSE_FINAL, request->userp);
}

static void answer_many(const TRITONSERVER_InferenceRequest *request)
{
    for (int64_t i = 0; i < request->responses; i++)
        request->complete(core_respond(request), 0, request->userp);
    request->complete(NULL, RESPONSE_FINAL, request->userp);
}

static void wait_until_cancelled(const TRITONSERVER_InferenceRequest *request)
{
    pthread_mutex_lock(&core_lock);
    while (!request->cancelled)
        pthread_cond_wait(&core_changed, &core_lock);
    pthread_mutex_unlock(&core_lock);
}

static void serve(TRITONSERVER_InferenceRequest *request)
{
    bool early = strcmp(request->model, "early") == 0;
    ResponseComplete complete = request->complete;
    void *userp = request->userp;
    TRITONSERVER_InferenceResponse *response = NULL;
    if (strcmp(request->model, "held") == 0 || strcmp(request->model, "late") == 0)
        wait_until_cancelled(request);
    if (strcmp(request->model, "racing") == 0)
        answer_racing(request);
    else if (strcmp(request->model, "talking") == 0)
        core_talk(request);
    else if (strcmp(request->model, "many") == 0)
        answer_many(request);
    else if (early)
        response = core_respond(request);
    else
        complete(core_respond(request), RESPONSE_FINAL, userp);
    request->released(request, RELEASE_ALL, request->release_userp);
    if (early)
        complete(response, RESPONSE_FINAL, userp);
}

static void *serve_in_thread(void *argument)
{
    serve(argument);
    pthread_mutex_lock(&core_lock);
    core_threads--;
    pthread_cond_broadcast(&core_changed);
    pthread_mutex_unlock(&core_lock);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerInferAsync(
    TRITONSERVER_Server *server, TRITONSERVER_InferenceRequest *request, TRITONSERVER_InferenceTrace *trace)
{
    (void)server;
    core_check(request, "starting");
    if (strcmp(request->model, "unfit") == 0) /* the core looks at inputs before it takes the trace */
        return TRITONSERVER_ErrorNew(TRITON_ERROR_INVALID_ARG, "unexpected inputs");
    core_end_trace(trace); /* soon enough: nothing is said of it */
    if (strcmp(request->model, "refused") == 0)
        return TRITONSERVER_ErrorNew(TRITON_ERROR_UNAVAILABLE, "the queue is full");
    TRITONSERVER_Error *error = strcmp(request->model, "talking") == 0 ? core_look_for_script(request) : NULL;
    if (error)
        return error;
    pthread_mutex_lock(&core_lock);
    request->cancelled = false; /* as the core does */
    pthread_mutex_unlock(&core_lock);
    if (strcmp(request->model, "echo") == 0) {
        serve(request);
        return NULL;
    }
    pthread_t thread;
    pthread_mutex_lock(&core_lock);
    core_threads++;
    pthread_mutex_unlock(&core_lock);
    pthread_create(&thread, NULL, serve_in_thread, request);
    pthread_detach(thread);
    return NULL;
}
