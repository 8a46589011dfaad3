/* Functions of Triton's core that do nothing, for those that the other files do not have. */
#include "core/api.h"

#define STUB(returned, name, parameters)                                                                               \
    __attribute__((weak)) returned TRITONSERVER_##name parameters;                                                     \
    __attribute__((weak)) returned TRITONSERVER_##name parameters                                                      \
    {                                                                                                                  \
        return (returned)0;                                                                                            \
    }

#pragma GCC diagnostic ignored "-Wunused-parameter"
API_FUNCTIONS(STUB)
