/* The model "talking": who asks for it names a unix socket, to which it connects, in the parameter "script", or as "script:PATH;" in its first input.
 * Whoever listens there says what it has to answer: pieces, each after its size in 4 bytes. One is a text of the output "text_output"; an empty one is an error. The connection's end is the stream's, and a request
 * that is cancelled ends the connection. */
#define _GNU_SOURCE
#include "fake_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static TRITONSERVER_Error *follow(TRITONSERVER_InferenceRequest *request, const char *path, size_t size)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%.*s", (int)size, path);
    request->script = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(request->script, (struct sockaddr *)&address, sizeof address) == 0)
        return NULL;
    return TRITONSERVER_ErrorNew(TRITON_ERROR_INVALID_ARG, "nobody says what is to be answered");
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetStringParameter(
    TRITONSERVER_InferenceRequest *request, const char *key, const char *value)
{
    return strcmp(key, "script") == 0 ? follow(request, value, strlen(value)) : NULL;
}

TRITONSERVER_Error *core_look_for_script(TRITONSERVER_InferenceRequest *request)
{
    static const char mark[] = "script:";
    const Tensor *input = request->inputs;
    if (request->input_count == 0 || input->piece_count == 0)
        return NULL;
    const char *end = (const char *)input->pieces[0] + input->sizes[0];
    const char *at = memmem(input->pieces[0], input->sizes[0], mark, sizeof mark - 1);
    const char *semicolon = at ? memchr(at, ';', (size_t)(end - at)) : NULL;
    at = at ? at + sizeof mark - 1 : NULL;
    return semicolon ? follow(request, at, (size_t)(semicolon - at)) : NULL;
}

static bool read_all(int fd, char *to, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t count = read(fd, to + done, size - done);
        if (count <= 0)
            return false;
        done += (size_t)count;
    }
    return true;
}

/* NULL: there is none. */
static char *read_text(int fd, uint32_t *size)
{
    if (!read_all(fd, (char *)size, sizeof *size))
        return NULL;
    char *text = malloc(*size + 1);
    if (text && read_all(fd, text, *size))
        return text;
    free(text);
    return NULL;
}

static TRITONSERVER_InferenceResponse *respond(
    const TRITONSERVER_InferenceRequest *request, const char *text, uint32_t size)
{
    int memory;
    int64_t device;
    void *buffer;
    TRITONSERVER_InferenceResponse *response = calloc(1, sizeof *response);
    Tensor output = {.name = strdup("text_output"), .datatype = TYPE_BYTES, .shape = {1}, .dims = 1};
    response->model = strdup(request->model);
    response->id = strdup("");
    response->allocator = request->allocator;
    output.size = size + sizeof size;
    request->allocator->allocate(request->allocator, output.name, output.size, MEMORY_CPU, 0, request->allocator_userp,
        &buffer, &output.userp, &memory, &device);
    output.bytes = buffer;
    memcpy(output.bytes, &size, sizeof size);
    memcpy(output.bytes + sizeof size, text, size);
    response->outputs[response->output_count++] = output;
    if (size == 0)
        response->error = TRITONSERVER_ErrorNew(TRITON_ERROR_INTERNAL, "the worker has died");
    return response;
}

void core_talk(TRITONSERVER_InferenceRequest *request)
{
    uint32_t size;
    char *text;
    while ((text = read_text(request->script, &size)) != NULL) {
        request->complete(respond(request, text, size), 0, request->userp);
        free(text);
    }
    pthread_mutex_lock(&core_lock);
    close(request->script);
    request->script = -1;
    pthread_mutex_unlock(&core_lock);
    request->complete(NULL, RESPONSE_FINAL, request->userp);
}
