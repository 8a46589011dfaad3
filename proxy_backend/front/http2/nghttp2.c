#include "http2/nghttp2.h"

#include <dlfcn.h>

Nghttp2 nghttp2;

bool nghttp2_load(const char *path, Problem *problem)
{
    static void *library;
    if (library)
        return true;
    void *found = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (found == NULL)
        return problem_set(problem, PROBLEM_UNAVAILABLE, "nghttp2, which gRPC needs, cannot be loaded: %s", dlerror());
#define LOAD(type, name, arguments)                                                                                    \
    *(void **)&nghttp2.name = dlsym(found, "nghttp2_" #name);                                                          \
    if (nghttp2.name == NULL)                                                                                          \
        return problem_set(problem, PROBLEM_UNAVAILABLE, "nghttp2 in %s has no function nghttp2_" #name, path);
    NGHTTP2_FUNCTIONS(LOAD)
#undef LOAD
    library = found;
    return true;
}
