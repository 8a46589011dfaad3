#include "http2/nghttp2.h"

#include <dlfcn.h>

Nghttp2 nghttp2;
void (*nghttp2_option_set_stream_reset_rate_limit)(nghttp2_option *option, uint64_t burst, uint64_t rate);

bool nghttp2_load(const char *path, Problem *problem)
{
    static void *library;
    if (library)
        return true;
    void *found = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (found == NULL)
        return problem_set(problem, PROBLEM_UNAVAILABLE, "cannot load nghttp2, which gRPC needs: %s", dlerror());
#define LOAD(type, name, arguments)                                                                                    \
    *(void **)&nghttp2.name = dlsym(found, "nghttp2_" #name);                                                          \
    if (nghttp2.name == NULL)                                                                                          \
        return problem_set(problem, PROBLEM_UNAVAILABLE, "nghttp2 in %s has no function nghttp2_" #name, path);
    NGHTTP2_FUNCTIONS(LOAD)
#undef LOAD
    *(void **)&nghttp2_option_set_stream_reset_rate_limit = dlsym(found, "nghttp2_option_set_stream_reset_rate_limit");
    library = found;
    return true;
}
