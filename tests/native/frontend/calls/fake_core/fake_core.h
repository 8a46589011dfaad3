/* What the files of the fake core have in common. */
#pragma once

#include "core/api.h"

#include <pthread.h>

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
    int64_t responses;
    int script; /* of the model "talking"; guarded by `core_lock`; -1: none */
    Tensor inputs[TENSORS];
    size_t input_count;
    bool cancelled; /* guarded by `core_lock` */
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

extern pthread_mutex_t core_lock;
extern pthread_cond_t core_changed;
extern size_t core_threads; /* that answer; guarded by `core_lock` */

TRITONSERVER_Error *TRITONSERVER_ErrorNew(int code, const char *text);
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error *error);

/* End the program if a request has been deleted. */
void core_check(const TRITONSERVER_InferenceRequest *request, const char *doing);

/* Give a trace back, if there is one. */
void core_end_trace(TRITONSERVER_InferenceTrace *trace);

/* Find its script in an input. */
TRITONSERVER_Error *core_look_for_script(TRITONSERVER_InferenceRequest *request);
/* Answer as its script says, to the end. */
void core_talk(TRITONSERVER_InferenceRequest *request);
/* Return the answer of the request's model. */
TRITONSERVER_InferenceResponse *core_respond(const TRITONSERVER_InferenceRequest *request);
