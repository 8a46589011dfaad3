/* The responses, which are printed when they are sent, and the factories that decoupled models make them with. */
#define _GNU_SOURCE
#include "fake_tritonserver.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

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
