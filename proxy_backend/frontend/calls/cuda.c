#include "calls/cuda.h"

#include "base/log.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>

enum { HANDLE = 64, LAZY_PEER_ACCESS = 1 };

/* The argument that cudaIpcOpenMemHandle takes by value. */
typedef struct {
    char bytes[HANDLE];
} Handle;

static struct {
    int (*set_device)(int device);
    int (*get_device)(int *device);
    int (*open_handle)(void **base, Handle handle, unsigned flags);
    int (*close_handle)(void *base);
    int (*address_range)(uint64_t *base, size_t *size, uint64_t address); /* a function of the driver */
    const char *(*error)(int code);
    bool complete;
} cuda;

static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool find(void *library, const char *name, void *function)
{
    void *found = library ? dlsym(library, name) : NULL;
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

/* Triton's core may have loaded the library already. A wheel includes it under another name. */
static void load(void)
{
    static const char *const names[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so"};
    void *runtime = dlsym(RTLD_DEFAULT, "cudaIpcOpenMemHandle") ? dlopen(NULL, RTLD_NOW) : NULL;
    for (size_t i = 0; runtime == NULL && i < sizeof names / sizeof *names; i++)
        runtime = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    bool complete = find(runtime, "cudaSetDevice", &cuda.set_device);
    complete = find(runtime, "cudaGetDevice", &cuda.get_device) && complete;
    complete = find(runtime, "cudaIpcOpenMemHandle", &cuda.open_handle) && complete;
    complete = find(runtime, "cudaIpcCloseMemHandle", &cuda.close_handle) && complete;
    complete = find(runtime, "cudaGetErrorString", &cuda.error) && complete;
    cuda.complete = find(driver, "cuMemGetAddressRange_v2", &cuda.address_range) && complete;
}

/* Check that the memory has the registered size. Otherwise, the core would read beyond its end. */
static bool is_large_enough(void *base, uint64_t size, Problem *problem)
{
    uint64_t start;
    size_t there;
    if (cuda.address_range(&start, &there, (uint64_t)(uintptr_t)base) != 0)
        return problem_set(
            problem, PROBLEM_INVALID, "failed to register CUDA shared memory: its size cannot be determined");
    uint64_t before = (uint64_t)(uintptr_t)base - start;
    if (before <= there && size <= there - before)
        return true;
    return problem_set(problem, PROBLEM_INVALID, "failed to register CUDA shared memory: it has fewer than %llu bytes",
        (unsigned long long)size);
}

bool cuda_open(Slice handle, int64_t device, uint64_t size, void **base, Problem *problem)
{
    pthread_once(&once, load);
    if (!cuda.complete)
        return problem_set(problem, PROBLEM_UNSUPPORTED,
            "CUDA shared memory needs CUDA's runtime and driver, which were not found on this server");
    if (handle.size != HANDLE)
        return problem_set(
            problem, PROBLEM_INVALID, "a CUDA handle has %d bytes, but this one has %zu", HANDLE, handle.size);
    if (device < 0 || device > INT_MAX)
        return problem_set(problem, PROBLEM_INVALID, "there is no GPU %lld", (long long)device);
    Handle copy;
    memcpy(copy.bytes, handle.start, HANDLE);
    int former = 0;
    cuda.get_device(&former);
    int code = cuda.set_device((int)device);
    if (code == 0)
        code = cuda.open_handle(base, copy, LAZY_PEER_ACCESS);
    bool opened = code == 0;
    bool right = opened && is_large_enough(*base, size, problem);
    if (!opened)
        problem_set(problem, PROBLEM_INVALID, "failed to register CUDA shared memory: %s", cuda.error(code));
    if (opened && !right)
        cuda_close(*base);
    cuda.set_device(former);
    return right;
}

void cuda_close(void *base)
{
    int code = cuda.close_handle(base);
    if (code != 0)
        log_error("closing CUDA shared memory: %s", cuda.error(code));
}
