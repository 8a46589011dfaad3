/* As much of tritonserver as the compiled proxy needs to serve batches: a program of its own, for sanitizers.
 *
 *     fake_tritonserver CONFIG.json BATCHES REQUESTS
 *
 * loads a model with this configuration, gives it so many batches of so many requests each, and prints what comes
 * back, a line for each response: an error with its code, or outputs in hexadecimal. It waits for the answers of a
 * decoupled model before it ends the instance.
 *
 * FAKE_GONE_AFTER=n: clients of a decoupled model go when they have n responses. FAKE_HANGS: it never takes one.
 * FAKE_API=n: the minor version of its API. FAKE_CHANGES: when a BYTES output is to be written, what the worker has at the
 * beginning of its memory changes.
 * FAKE_WRONG=what: of requests with an odd number, this is not as it should be: a text is no UTF-8, or a string is longer
 * than its input. FAKE_NUMBER=number: the parameter of that name. FAKE_FIRST: the number of the first request.
 */
#define _GNU_SOURCE
#include "triton/api.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct TRITONSERVER_Error {
    TRITONSERVER_Error_Code code;
    char *text;
};
struct TRITONBACKEND_Model {
    void *state;
    char *config;
};
struct TRITONBACKEND_ModelInstance {
    void *state;
    TRITONBACKEND_Model *model;
};
struct TRITONBACKEND_Input {
    const char *name;
    int datatype;
    int64_t shape[2];
    const char *pieces[2];
    uint64_t sizes[2];
};
struct TRITONBACKEND_Request {
    int number;
};
struct TRITONBACKEND_ResponseFactory {
    int request;
    int sent;
    uint64_t gone_ns; /* when that was first told */
};
struct TRITONBACKEND_Output {
    char *name;
    int datatype;
    uint32_t dims;
    int64_t shape[64];
    uint8_t *data;
    uint64_t size;
};
struct TRITONBACKEND_Response {
    int request;
    TRITONBACKEND_ResponseFactory *factory; /* of a decoupled model */
    int outputs;
    TRITONBACKEND_Output output[8];
};

TRITONSERVER_Error *TRITONBACKEND_Initialize(TRITONBACKEND_Backend *);
TRITONSERVER_Error *TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model *);
TRITONSERVER_Error *TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model *);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance *);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance *);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance *, TRITONBACKEND_Request **, uint32_t);

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static int released, statistics;
static int factories; /* those that are held */

TRITONSERVER_Error *TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char *text)
{
    TRITONSERVER_Error *error = malloc(sizeof *error);
    *error = (TRITONSERVER_Error){code, strdup(text)};
    return error;
}

void TRITONSERVER_ErrorDelete(TRITONSERVER_Error *error)
{
    free(error->text);
    free(error);
}

const char *TRITONSERVER_ErrorMessage(TRITONSERVER_Error *error)
{
    return error->text;
}

TRITONSERVER_Error *TRITONSERVER_LogMessage(int level, const char *file, int line, const char *text)
{
    printf("log %d %s:%d %s\n", level, file, line, text);
    fflush(stdout); /* it may be the last thing that is said */
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ApiVersion(uint32_t *major, uint32_t *minor)
{
    *major = API_MAJOR;
    *minor = getenv("FAKE_API") ? (uint32_t)atoi(getenv("FAKE_API")) : API_MINOR;
    return NULL;
}

/* ── the model ──────────────────────────────────────────────────────────────────────────────────── */

TRITONSERVER_Error *TRITONBACKEND_ModelName(TRITONBACKEND_Model *model, const char **name)
{
    (void)model;
    *name = "model";
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelServer(TRITONBACKEND_Model *model, TRITONSERVER_Server **server)
{
    (void)model;
    *server = NULL; /* calls are none of this program's business */
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelVersion(TRITONBACKEND_Model *model, uint64_t *version)
{
    (void)model;
    *version = 3;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelConfig(
    TRITONBACKEND_Model *model, uint32_t version, TRITONSERVER_Message **message)
{
    (void)version;
    *message = (TRITONSERVER_Message *)model->config;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message *message, const char **text, size_t *size)
{
    *text = (const char *)message;
    *size = strlen(*text);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_MessageDelete(TRITONSERVER_Message *message)
{
    (void)message;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelState(TRITONBACKEND_Model *model, void **state)
{
    *state = model->state;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelSetState(TRITONBACKEND_Model *model, void *state)
{
    model->state = state;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Model **model)
{
    *model = instance->model;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceName(TRITONBACKEND_ModelInstance *instance, const char **name)
{
    (void)instance;
    *name = "model_0";
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceState(TRITONBACKEND_ModelInstance *instance, void **state)
{
    *state = instance->state;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceSetState(TRITONBACKEND_ModelInstance *instance, void *state)
{
    instance->state = state;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportStatistics(TRITONBACKEND_ModelInstance *instance,
    TRITONBACKEND_Request *request, bool success, uint64_t exec_start, uint64_t compute_start, uint64_t compute_end,
    uint64_t exec_end)
{
    (void)instance, (void)request, (void)success;
    statistics += exec_start <= compute_start && compute_start <= compute_end && compute_end <= exec_end;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportBatchStatistics(TRITONBACKEND_ModelInstance *instance,
    uint64_t rows, uint64_t exec_start, uint64_t compute_start, uint64_t compute_end, uint64_t exec_end)
{
    (void)instance, (void)exec_start, (void)compute_start, (void)compute_end, (void)exec_end;
    printf("batch of %lu rows\n", rows);
    return NULL;
}

/* Whether this is what is wrong with a request. */
static bool is_wrong(const TRITONBACKEND_Request *request, const char *what)
{
    const char *wrong = getenv("FAKE_WRONG");
    return request->number % 2 && wrong && strcmp(wrong, what) == 0;
}

/* ── requests ───────────────────────────────────────────────────────────────────────────────────── */

/* In two pieces each, as a frontend may give them; the second of no bytes but for x. */
static TRITONBACKEND_Input inputs[] = {
    {"x", 11, {1, 4}, {"0123456789ab", "cdef"}, {12, 4}},
    {"s", TYPE_BYTES, {1, 1}, {"\3\0\0\0abc", ""}, {7, 0}},
    {"nothing", 9, {1, 0}, {"", ""}, {0, 0}},
};
static TRITONBACKEND_Input wrong_inputs[] = {
    {"s", TYPE_BYTES, {1, 1}, {"\4\0\0\0abc", ""}, {7, 0}},
    {"s", TYPE_BYTES, {1, 1}, {"\1\0", "\0\0ab"}, {2, 4}},
    {"s", TYPE_BYTES, {1, 2}, {"\1\0\0\0a\377\377", "\377\377"}, {7, 2}},
    {"s", TYPE_BYTES, {1, 1}, {"\1\0", ""}, {2, 0}},
};

TRITONSERVER_Error *TRITONBACKEND_RequestInputCount(TRITONBACKEND_Request *request, uint32_t *count)
{
    (void)request;
    *count = 3;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestInputByIndex(
    TRITONBACKEND_Request *request, uint32_t index, TRITONBACKEND_Input **input)
{
    static const char *const wrongs[] = {"long string", "two strings", "one string", "half a length"};
    *input = &inputs[index];
    for (int i = 0; i < 4 && index == 1; i++)
        if (is_wrong(request, wrongs[i]))
            *input = &wrong_inputs[i];
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_InputProperties(TRITONBACKEND_Input *input, const char **name, int *datatype,
    const int64_t **shape, uint32_t *dims, uint64_t *size, uint32_t *pieces)
{
    if (name)
        *name = input->name;
    if (datatype)
        *datatype = input->datatype;
    if (shape)
        *shape = input->shape;
    if (dims)
        *dims = 2;
    if (size)
        *size = input->sizes[0] + input->sizes[1];
    if (pieces)
        *pieces = 2;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_InputBuffer(
    TRITONBACKEND_Input *input, uint32_t index, const void **buffer, uint64_t *size, int *memory, int64_t *id)
{
    (void)id;
    *memory = MEMORY_CPU;
    *buffer = input->pieces[index];
    *size = input->sizes[index];
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestOutputCount(TRITONBACKEND_Request *request, uint32_t *count)
{
    (void)request;
    *count = 2;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestOutputName(TRITONBACKEND_Request *request, uint32_t index, const char **name)
{
    (void)request;
    *name = index ? "y" : "z";
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestParameterCount(TRITONBACKEND_Request *request, uint32_t *count)
{
    (void)request;
    *count = 5;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestParameter(
    TRITONBACKEND_Request *request, uint32_t index, const char **key, int *type, const void **value)
{
    static const int64_t integer = -1234567890123;
    static double number = 0.1;
    static const bool yes = true;
    static const struct {
        const char *key;
        int type;
        const void *value;
    } all[] = {{"text", PARAMETER_STRING, "a \"quoted\"\n\\ \xc3\xa9"}, {"integer", PARAMETER_INT, &integer},
        {"yes", PARAMETER_BOOL, &yes}, {"number", PARAMETER_DOUBLE, &number},
        {"pytriton_calls", PARAMETER_STRING, "made up"},
        /* instead of the first one: */
        {"text", PARAMETER_STRING, "cut off in the middle \xc3"}, {"t\xff\xfe", PARAMETER_STRING, "b"}};
    if (getenv("FAKE_NUMBER"))
        number = atof(getenv("FAKE_NUMBER"));
    if (index == 0)
        index = is_wrong(request, "parameter") ? 5 : is_wrong(request, "key") ? 6 : 0;
    *key = all[index].key;
    *type = all[index].type;
    *value = all[index].value;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestId(TRITONBACKEND_Request *request, const char **id)
{
    *id = is_wrong(request, "id") ? "\xed\xa0\x80" : "i";
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestCorrelationId(TRITONBACKEND_Request *request, uint64_t *id)
{
    (void)request, (void)id;
    return TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, "it is a string");
}

TRITONSERVER_Error *TRITONBACKEND_RequestCorrelationIdString(TRITONBACKEND_Request *request, const char **id)
{
    *id = is_wrong(request, "sequence") ? "s\x80" : "s";
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestFlags(TRITONBACKEND_Request *request, uint32_t *flags)
{
    (void)request;
    *flags = 0;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_InferenceRequestTimeoutMicroseconds(
    TRITONBACKEND_Request *request, uint64_t *timeout_us)
{
    (void)request;
    *timeout_us = 0;
    return NULL;
}

/* The first request of a batch is traced, and who has a wrong context. */
TRITONSERVER_Error *TRITONBACKEND_RequestTrace(TRITONBACKEND_Request *request, TRITONSERVER_InferenceTrace **trace)
{
    *trace = request->number && !is_wrong(request, "trace") ? NULL : (TRITONSERVER_InferenceTrace *)request;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceTraceContext(TRITONSERVER_InferenceTrace *trace, const char **context)
{
    *context = is_wrong((TRITONBACKEND_Request *)trace, "trace") ? "{\"traceparent\":\"\xff\"}"
                                                                 : "{\"traceparent\":\"00-1-2-01\"}";
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestRelease(TRITONBACKEND_Request *request, uint32_t flags)
{
    (void)request;
    released++;
    if (flags != RELEASE_ALL)
        printf("request %d is queued again\n", request->number);
    return NULL;
}

/* ── responses ──────────────────────────────────────────────────────────────────────────────────── */

TRITONSERVER_Error *TRITONBACKEND_ResponseNew(TRITONBACKEND_Response **response, TRITONBACKEND_Request *request)
{
    *response = calloc(1, sizeof **response);
    (*response)->request = request->number;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ResponseFactoryNew(
    TRITONBACKEND_ResponseFactory **factory, TRITONBACKEND_Request *request)
{
    *factory = calloc(1, sizeof **factory);
    (*factory)->request = request->number;
    __atomic_add_fetch(&factories, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ResponseFactoryDelete(TRITONBACKEND_ResponseFactory *factory)
{
    free(factory);
    __atomic_sub_fetch(&factories, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ResponseFactorySendFlags(TRITONBACKEND_ResponseFactory *factory, uint32_t flags)
{
    bool early = factory->gone_ns && now_ns() - factory->gone_ns < 200000000;
    printf("flags %u to %d%s\n", flags, factory->request, early ? ", while it is being cancelled" : "");
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ResponseFactoryIsCancelled(TRITONBACKEND_ResponseFactory *factory, bool *gone)
{
    const char *after = getenv("FAKE_GONE_AFTER");
    *gone = after && __atomic_load_n(&factory->sent, __ATOMIC_SEQ_CST) >= atoi(after);
    if (*gone && factory->gone_ns == 0)
        factory->gone_ns = now_ns();
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ResponseNewFromFactory(
    TRITONBACKEND_Response **response, TRITONBACKEND_ResponseFactory *factory)
{
    *response = calloc(1, sizeof **response);
    (*response)->request = factory->request;
    (*response)->factory = factory;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ResponseOutput(TRITONBACKEND_Response *response, TRITONBACKEND_Output **output,
    const char *name, int datatype, const int64_t *shape, uint32_t dims)
{
    if (response->outputs == 8)
        return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "too many outputs");
    *output = &response->output[response->outputs++];
    (*output)->name = strdup(name);
    (*output)->datatype = datatype;
    (*output)->dims = dims;
    memcpy((*output)->shape, shape, dims * sizeof *shape);
    return NULL;
}

/* Do what a worker may do at any moment: write into its memory, of which this process has descriptors. */
static void change_memories(void)
{
    DIR *folder = opendir("/proc/self/fd");
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        char path[300], target[64] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        if (readlink(path, target, sizeof target - 1) < 0 || strstr(target, "memfd:pytriton-lane") == NULL)
            continue;
        int fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0 || pwrite(fd, "\377\377\377\377", 4, 0) != 4)
            printf("the memory cannot be changed\n");
        close(fd);
    }
    closedir(folder);
}

TRITONSERVER_Error *TRITONBACKEND_OutputBuffer(
    TRITONBACKEND_Output *output, void **buffer, uint64_t size, int *memory, int64_t *id)
{
    (void)id;
    *memory = MEMORY_CPU;
    output->size = size;
    if (getenv("FAKE_CHANGES") && output->datatype == TYPE_BYTES)
        change_memories();
    *buffer = output->data = malloc(size + 1);
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ResponseDelete(TRITONBACKEND_Response *response)
{
    for (int i = 0; i < response->outputs; i++) {
        free(response->output[i].name);
        free(response->output[i].data);
    }
    free(response);
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ResponseSend(
    TRITONBACKEND_Response *response, uint32_t flags, TRITONSERVER_Error *error)
{
    if (error && response->factory)
        usleep(200000); /* a client that takes its time: whoever does something meanwhile has done it */
    while (getenv("FAKE_HANGS"))
        pause();
    if (response->factory)
        __atomic_add_fetch(&response->factory->sent, 1, __ATOMIC_SEQ_CST);
    flockfile(stdout);
    printf("response to %d, flags %u:", response->request, flags);
    if (error)
        printf(" error %d %s", error->code, error->text);
    for (int i = 0; !error && i < response->outputs; i++) {
        TRITONBACKEND_Output *output = &response->output[i];
        printf(" %s %d [", output->name, output->datatype);
        for (uint32_t k = 0; k < output->dims; k++)
            printf(k ? ",%ld" : "%ld", output->shape[k]);
        printf("] ");
        for (uint64_t k = 0; k < output->size; k++)
            printf("%02x", output->data[k]);
    }
    printf("\n");
    funlockfile(stdout);
    return TRITONBACKEND_ResponseDelete(response);
}

/* ── */

static void demand(TRITONSERVER_Error *error)
{
    if (error) {
        printf("refused: %s\n", error->text);
        TRITONSERVER_ErrorDelete(error);
        exit(3);
    }
}

static char *contents(const char *path)
{
    char *text = calloc(1, 1 << 16);
    FILE *file = fopen(path, "r");
    if (file == NULL || fread(text, 1, (1 << 16) - 1, file) == 0)
        exit(2);
    fclose(file);
    return text;
}

int main(int count, char **words)
{
    if (count != 4)
        return 2;
    int batches = atoi(words[2]), requests = atoi(words[3]);
    TRITONBACKEND_Model model = {.config = contents(words[1])};
    TRITONBACKEND_ModelInstance instance = {.model = &model};
    TRITONBACKEND_Request *request = calloc((size_t)requests, sizeof *request);
    TRITONBACKEND_Request **batch = calloc((size_t)requests, sizeof *batch);
    for (int i = 0; i < requests; i++)
        request[i].number = i + (getenv("FAKE_FIRST") ? atoi(getenv("FAKE_FIRST")) : 0);
    demand(TRITONBACKEND_Initialize(NULL));
    demand(TRITONBACKEND_ModelInitialize(&model));
    demand(TRITONBACKEND_ModelInstanceInitialize(&instance));
    for (int i = 0; i < batches; i++) {
        for (int k = 0; k < requests; k++) /* who executes them may put them in another order */
            batch[k] = &request[k];
        demand(TRITONBACKEND_ModelInstanceExecute(&instance, batch, (uint32_t)requests));
    }
    while (__atomic_load_n(&factories, __ATOMIC_SEQ_CST))
        usleep(1000);
    demand(TRITONBACKEND_ModelInstanceFinalize(&instance));
    demand(TRITONBACKEND_ModelFinalize(&model));
    free(model.config);
    free(request);
    free(batch);
    printf("released %d, statistics of %d\n", released, statistics);
    return 0;
}
