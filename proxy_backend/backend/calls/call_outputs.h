/* The outputs of answers to calls, and their memory. */
#ifndef PYTRITON_BACKEND_CALLS_CALL_OUTPUTS_H
#define PYTRITON_BACKEND_CALLS_CALL_OUTPUTS_H

#include "calls/call.h"

enum { MAX_TEXT_BYTES = 1 << 15 };

/* Returns the allocator that tritonserver uses for the outputs of calls; its argument is the call. NULL without
 * memory.
 */
TRITONSERVER_ResponseAllocator *call_outputs_allocator(void);
/* Add an output to an answer. Returns false without memory. */
bool call_output_put(
    Call *call, TRITONSERVER_InferenceResponse *response, uint32_t index, Answer *answer, Buffer *message);
/* Free the memory of an answer's outputs. */
void call_answer_free(Call *call, Answer *answer);
/* Returns the total size of a response's outputs. */
uint64_t response_size(TRITONSERVER_InferenceResponse *response);

#endif
