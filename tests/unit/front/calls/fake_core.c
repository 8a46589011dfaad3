/* As much of Triton's core as calls need: models whose names say how they answer. A library of its own, as the core is.
 *
 * echo: in ServerInferAsync itself. thread: in a thread. early: the request is released before it is answered. many: so many answers as
 * parameter "answers" says, and then that it was all. racing: from several threads at once. held: when it has been cancelled. refused: not
 * at all. huge: wants more memory than there is. failing: an error. odd: texts that are no UTF-8. short: fewer bytes than its shape says.
 */
#include "core/api.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

TRITONSERVER_Error *TRITONSERVER_ServerIsReady(TRITONSERVER_Server *server, bool *ready);
TRITONSERVER_Error *TRITONSERVER_ServerIsReady(TRITONSERVER_Server *server, bool *ready)
{
    (void)server;
    *ready = true;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerIsLive(TRITONSERVER_Server *server, bool *live);
TRITONSERVER_Error *TRITONSERVER_ServerIsLive(TRITONSERVER_Server *server, bool *live)
{
    return TRITONSERVER_ServerIsReady(server, live);
}

/* Nobody looks into it. */
TRITONSERVER_Parameter *TRITONSERVER_ParameterNew(const char *name, int type, const void *value);
TRITONSERVER_Parameter *TRITONSERVER_ParameterNew(const char *name, int type, const void *value)
{
    static int parameter;
    (void)name;
    (void)type;
    (void)value;
    return (TRITONSERVER_Parameter *)&parameter;
}

TRITONSERVER_Error *TRITONSERVER_LogMessage(int level, const char *file, const int line, const char *text);
TRITONSERVER_Error *TRITONSERVER_LogMessage(int level, const char *file, const int line, const char *text)
{
    fprintf(stderr, "%c %s:%d] %s\n", "IWEV"[level], file, line, text);
    return NULL;
}

enum { TENSORS = 16, DIMS = 64, ALIVE = 0x600d, RACERS = 3 };

typedef struct {
    char *name;
    int datatype;
    int64_t shape[DIMS];
    uint64_t dims;
    char *bytes; /* of an input: copied when it is answered; of an output: the allocator's */
    const void *pieces[TENSORS];
    size_t sizes[TENSORS];
    size_t piece_count, size;
    void *userp;
} Tensor;

struct TRITONSERVER_Error {
    int code;
    char *text;
};

struct TRITONSERVER_ResponseAllocator {
    AllocateOutput allocate;
    ReleaseOutput release;
};

struct TRITONSERVER_InferenceRequest {
    int alive;
    char *model, *id;
    int64_t answers;
    Tensor inputs[TENSORS];
    size_t input_count;
    bool cancelled; /* guarded by `lock` */
    TRITONSERVER_ResponseAllocator *allocator;
    void *allocator_userp, *userp, *release_userp;
    ResponseComplete complete;
    RequestReleased released;
};

struct TRITONSERVER_InferenceResponse {
    char *model, *id;
    TRITONSERVER_ResponseAllocator *allocator;
    TRITONSERVER_Error *error;
    Tensor outputs[TENSORS];
    size_t output_count;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static size_t threads; /* that answer; guarded by it */

/* ── errors ─────────────────────────────────────────────────────────────────────────────────────── */

static TRITONSERVER_Error *error_new(int code, const char *text)
{
    TRITONSERVER_Error *error = malloc(sizeof *error);
    *error = (TRITONSERVER_Error){code, strdup(text)};
    return error;
}

TRITONSERVER_Error *TRITONSERVER_ErrorNew(int code, const char *text)
{
    return error_new(code, text);
}

void TRITONSERVER_ErrorDelete(TRITONSERVER_Error *error)
{
    free(error->text);
    free(error);
}

int TRITONSERVER_ErrorCode(TRITONSERVER_Error *error)
{
    return error->code;
}

const char *TRITONSERVER_ErrorMessage(TRITONSERVER_Error *error)
{
    return error->text;
}

TRITONSERVER_Error *TRITONSERVER_ApiVersion(uint32_t *major, uint32_t *minor)
{
    *major = API_MAJOR;
    *minor = API_MINOR;
    return NULL;
}

/* ── the server ─────────────────────────────────────────────────────────────────────────────────── */

static bool is_model(const char *model)
{
    static const char *const models[] = {
        "echo", "thread", "early", "many", "racing", "held", "refused", "huge", "failing", "odd", "short"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (strcmp(models[i], model) == 0)
            return true;
    return false;
}

TRITONSERVER_Error *TRITONSERVER_ServerModelTransactionProperties(
    TRITONSERVER_Server *server, const char *model, int64_t version, uint32_t *flags, void **unused)
{
    (void)server;
    (void)unused;
    if (!is_model(model) || version > 1)
        return error_new(TRITON_ERROR_NOT_FOUND, "Request for unknown model");
    *flags = strcmp(model, "many") == 0 ? ANSWERS_MANY_TIMES : ANSWERS_ONCE;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerModelBatchProperties(
    TRITONSERVER_Server *server, const char *model, int64_t version, uint32_t *flags, void **unused)
{
    (void)server;
    (void)version;
    (void)unused;
    *flags = strcmp(model, "echo") == 0 ? BATCH_FIRST_DIM : 1;
    return NULL;
}

/* Wait for what is under way, as the core does. */
TRITONSERVER_Error *TRITONSERVER_ServerStop(TRITONSERVER_Server *server)
{
    (void)server;
    pthread_mutex_lock(&lock);
    while (threads)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* ── requests ───────────────────────────────────────────────────────────────────────────────────── */

static void check(const TRITONSERVER_InferenceRequest *request, const char *doing)
{
    if (request->alive == ALIVE)
        return;
    fprintf(stderr, "%s: the request is gone\n", doing);
    abort();
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestNew(
    TRITONSERVER_InferenceRequest **request, TRITONSERVER_Server *server, const char *model, int64_t version)
{
    (void)server;
    (void)version;
    *request = calloc(1, sizeof **request);
    (*request)->alive = ALIVE;
    (*request)->model = strdup(model);
    (*request)->answers = 1;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestDelete(TRITONSERVER_InferenceRequest *request)
{
    check(request, "deleting");
    request->alive = 0;
    for (size_t i = 0; i < request->input_count; i++) {
        free(request->inputs[i].name);
        free(request->inputs[i].bytes);
    }
    free(request->model);
    free(request->id);
    free(request);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetId(TRITONSERVER_InferenceRequest *request, const char *id)
{
    free(request->id);
    request->id = strdup(id);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestCancel(TRITONSERVER_InferenceRequest *request)
{
    check(request, "cancelling");
    pthread_mutex_lock(&lock);
    request->cancelled = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetIntParameter(
    TRITONSERVER_InferenceRequest *request, const char *key, int64_t value)
{
    if (strcmp(key, "answers") == 0)
        request->answers = value;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestAddInput(
    TRITONSERVER_InferenceRequest *request, const char *name, int datatype, const int64_t *shape, uint64_t dims)
{
    if (request->input_count == TENSORS || dims > DIMS)
        return error_new(TRITON_ERROR_INVALID_ARG, "too much for this core");
    for (size_t i = 0; i < request->input_count; i++)
        if (strcmp(request->inputs[i].name, name) == 0)
            return error_new(TRITON_ERROR_INVALID_ARG, "input already exists in request");
    Tensor *input = &request->inputs[request->input_count++];
    *input = (Tensor){.name = strdup(name), .datatype = datatype, .dims = dims};
    memcpy(input->shape, shape, dims * sizeof *shape);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestAddRawInput(TRITONSERVER_InferenceRequest *request, const char *name)
{
    int64_t shape[] = {1};
    return TRITONSERVER_InferenceRequestAddInput(request, name, TYPE_UINT8, shape, 1);
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestAppendInputData(TRITONSERVER_InferenceRequest *request,
    const char *name, const void *bytes, size_t size, int memory_type, int64_t memory_type_id)
{
    (void)name;
    (void)memory_type;
    (void)memory_type_id;
    Tensor *input = &request->inputs[request->input_count - 1];
    if (input->piece_count == TENSORS)
        return error_new(TRITON_ERROR_INVALID_ARG, "too many pieces for this core");
    input->pieces[input->piece_count] = bytes;
    input->sizes[input->piece_count++] = size;
    input->size += size;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetReleaseCallback(
    TRITONSERVER_InferenceRequest *request, RequestReleased released, void *userp)
{
    request->released = released;
    request->release_userp = userp;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetResponseCallback(TRITONSERVER_InferenceRequest *request,
    TRITONSERVER_ResponseAllocator *allocator, void *allocator_userp, ResponseComplete complete, void *userp)
{
    request->allocator = allocator;
    request->allocator_userp = allocator_userp;
    request->complete = complete;
    request->userp = userp;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ResponseAllocatorNew(
    TRITONSERVER_ResponseAllocator **allocator, AllocateOutput allocate, ReleaseOutput release, StartResponse start)
{
    (void)start;
    *allocator = malloc(sizeof **allocator);
    **allocator = (TRITONSERVER_ResponseAllocator){allocate, release};
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ResponseAllocatorDelete(TRITONSERVER_ResponseAllocator *allocator)
{
    free(allocator);
    return NULL;
}

/* ── responses ──────────────────────────────────────────────────────────────────────────────────── */

static TRITONSERVER_Error *add_output(
    const TRITONSERVER_InferenceRequest *request, TRITONSERVER_InferenceResponse *response, const Tensor *input)
{
    int memory;
    int64_t device;
    void *buffer;
    Tensor output = *input;
    char name[64];
    bool odd = strcmp(request->model, "odd") == 0;
    snprintf(name, sizeof name, odd ? "\xff%s" : "OUT%s", input->name);
    output.size = strcmp(request->model, "huge") == 0 ? (size_t)1 << 40 : input->size;
    TRITONSERVER_Error *error = request->allocator->allocate(request->allocator, name, output.size, MEMORY_CPU, 0,
        request->allocator_userp, &buffer, &output.userp, &memory, &device);
    if (error)
        return error;
    output.name = strdup(name);
    output.bytes = buffer;
    for (size_t i = 0; i < input->piece_count; i++) {
        memcpy(buffer, input->pieces[i], input->sizes[i]);
        buffer = (char *)buffer + input->sizes[i];
    }
    if (strcmp(request->model, "short") == 0)
        output.shape[0] = INT64_MAX;
    response->outputs[response->output_count++] = output;
    return NULL;
}

static TRITONSERVER_InferenceResponse *respond(const TRITONSERVER_InferenceRequest *request)
{
    TRITONSERVER_InferenceResponse *response = calloc(1, sizeof *response);
    response->model = strdup(request->model);
    response->id = strdup(request->id ? request->id : "");
    response->allocator = request->allocator;
    if (strcmp(request->model, "failing") == 0) {
        char text[512];
        snprintf(text, sizeof text, "not today%s", response->id);
        response->error = error_new(TRITON_ERROR_INTERNAL, text);
    }
    if (strcmp(request->model, "held") == 0)
        response->error = error_new(TRITON_ERROR_CANCELLED, "cancelled");
    for (size_t i = 0; response->error == NULL && i < request->input_count; i++)
        response->error = add_output(request, response, &request->inputs[i]);
    return response;
}

TRITONSERVER_Error *TRITONSERVER_InferenceResponseDelete(TRITONSERVER_InferenceResponse *response)
{
    for (size_t i = 0; i < response->output_count; i++) {
        Tensor *output = &response->outputs[i];
        response->allocator->release(response->allocator, output->bytes, output->userp, output->size, MEMORY_CPU, 0);
        free(output->name);
    }
    if (response->error)
        TRITONSERVER_ErrorDelete(response->error);
    free(response->model);
    free(response->id);
    free(response);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceResponseError(TRITONSERVER_InferenceResponse *response)
{
    return response->error;
}

TRITONSERVER_Error *TRITONSERVER_InferenceResponseModel(
    TRITONSERVER_InferenceResponse *response, const char **model, int64_t *version)
{
    *model = response->model;
    *version = 1;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceResponseId(TRITONSERVER_InferenceResponse *response, const char **id)
{
    *id = response->id;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceResponseParameterCount(
    TRITONSERVER_InferenceResponse *response, uint32_t *count)
{
    *count = strcmp(response->model, "odd") == 0;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceResponseParameter(
    TRITONSERVER_InferenceResponse *response, uint32_t index, const char **name, int *type, const void **value)
{
    (void)response;
    (void)index;
    *name = "odd";
    *type = PARAMETER_STRING;
    *value = "\xc3(\xff";
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceResponseOutputCount(TRITONSERVER_InferenceResponse *response, uint32_t *count)
{
    *count = (uint32_t)response->output_count;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceResponseOutput(TRITONSERVER_InferenceResponse *response, uint32_t index,
    const char **name, int *datatype, const int64_t **shape, uint64_t *dims, const void **bytes, size_t *size,
    int *memory_type, int64_t *memory_type_id, void **buffer_userp)
{
    const Tensor *output = &response->outputs[index];
    *name = output->name;
    *datatype = output->datatype;
    *shape = output->shape;
    *dims = output->dims;
    *bytes = output->bytes;
    *size = output->size;
    *memory_type = MEMORY_CPU;
    *memory_type_id = 0;
    *buffer_userp = output->userp;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceResponseOutputClassificationLabel(
    TRITONSERVER_InferenceResponse *response, uint32_t index, size_t class_index, const char **label)
{
    static const char *const labels[] = {"cat", "dog"};
    (void)response;
    (void)index;
    *label = class_index < sizeof labels / sizeof *labels ? labels[class_index] : NULL;
    return NULL;
}

/* ── inference ──────────────────────────────────────────────────────────────────────────────────── */

static void *race(void *argument)
{
    const TRITONSERVER_InferenceRequest *request = argument;
    request->complete(respond(request), 0, request->userp);
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
    for (int64_t i = 0; i < request->answers; i++)
        request->complete(respond(request), 0, request->userp);
    request->complete(NULL, RESPONSE_FINAL, request->userp);
}

static void wait_until_cancelled(const TRITONSERVER_InferenceRequest *request)
{
    pthread_mutex_lock(&lock);
    while (!request->cancelled)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static void serve(TRITONSERVER_InferenceRequest *request)
{
    bool early = strcmp(request->model, "early") == 0;
    ResponseComplete complete = request->complete;
    void *userp = request->userp;
    TRITONSERVER_InferenceResponse *response = NULL;
    if (strcmp(request->model, "held") == 0)
        wait_until_cancelled(request);
    if (strcmp(request->model, "racing") == 0)
        answer_racing(request);
    else if (strcmp(request->model, "many") == 0)
        answer_many(request);
    else if (early)
        response = respond(request);
    else
        complete(respond(request), RESPONSE_FINAL, userp);
    request->released(request, RELEASE_ALL, request->release_userp);
    if (early)
        complete(response, RESPONSE_FINAL, userp);
}

static void *serve_in_thread(void *argument)
{
    serve(argument);
    pthread_mutex_lock(&lock);
    threads--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerInferAsync(
    TRITONSERVER_Server *server, TRITONSERVER_InferenceRequest *request, TRITONSERVER_InferenceTrace *trace)
{
    (void)server;
    (void)trace;
    check(request, "starting");
    if (strcmp(request->model, "refused") == 0)
        return error_new(TRITON_ERROR_UNAVAILABLE, "the queue is full");
    pthread_mutex_lock(&lock);
    request->cancelled = false; /* as the core does */
    pthread_mutex_unlock(&lock);
    if (strcmp(request->model, "echo") == 0) {
        serve(request);
        return NULL;
    }
    pthread_t thread;
    pthread_mutex_lock(&lock);
    threads++;
    pthread_mutex_unlock(&lock);
    pthread_create(&thread, NULL, serve_in_thread, request);
    pthread_detach(thread);
    return NULL;
}
