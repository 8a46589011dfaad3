#define _GNU_SOURCE
#include "triton/datatypes.h"

#include <dlfcn.h>
#include <string.h>

#define ROW(number, name, size) [number] = {#name, size},
const Datatype datatypes[TYPE_COUNT] = {[TYPE_INVALID] = {"INVALID", 0}, DATATYPES(ROW)};
#undef ROW

bool strings_fill(const uint8_t *bytes, uint64_t size, uint64_t count)
{
    while (count && size >= 4) {
        uint32_t length;
        memcpy(&length, bytes, 4);
        if (length > size - 4)
            return false;
        bytes += 4 + (uint64_t)length;
        size -= 4 + (uint64_t)length;
        count--;
    }
    return count == 0 && size == 0;
}

/* Copy to or from a device, using the CUDA library that tritonserver has loaded. */
static bool copy_on_device(void *to, const void *from, size_t size)
{
    enum { ANY_DIRECTION = 4 }; /* cudaMemcpyDefault */
    int (*copy)(void *, const void *, size_t, int) =
        (int (*)(void *, const void *, size_t, int))(uintptr_t)dlsym(RTLD_DEFAULT, "cudaMemcpy");
    return copy && copy(to, from, size, ANY_DIRECTION) == 0;
}

bool tensor_copy(void *to, const void *from, size_t size, int memory_type)
{
    if (memory_type == MEMORY_GPU)
        return copy_on_device(to, from, size);
    memcpy(to, from, size);
    return true;
}
