/* Traces, of which nothing is said but their end. */
#include "fake_core.h"

#include <stdlib.h>

struct TRITONSERVER_InferenceTrace {
    TraceReleased released;
    void *userp;
};

TRITONSERVER_Error *TRITONSERVER_InferenceTraceTensorNew(TRITONSERVER_InferenceTrace **trace, int level,
    uint64_t parent_id, TraceActivity activity, TraceTensor tensor, TraceReleased released, void *userp)
{
    (void)level;
    (void)parent_id;
    (void)activity;
    (void)tensor;
    *trace = malloc(sizeof **trace);
    **trace = (TRITONSERVER_InferenceTrace){released, userp};
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceTraceDelete(TRITONSERVER_InferenceTrace *trace)
{
    free(trace);
    return NULL;
}

void core_end_trace(TRITONSERVER_InferenceTrace *trace)
{
    if (trace)
        trace->released(trace, trace->userp);
}
