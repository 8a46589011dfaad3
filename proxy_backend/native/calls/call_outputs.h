/* The outputs of answers to calls, and their memory. */
#ifndef PYTRITON_CALL_OUTPUTS_H
#define PYTRITON_CALL_OUTPUTS_H

#include "calls/call.h"

enum { LONGEST_TEXT = 1 << 15 };

/* What gives tritonserver memory for the outputs of calls; its argument is the call. NULL: there is none. */
TRITONSERVER_ResponseAllocator *call_outputs_allocator(void);
/* Put one output into an answer. False: there is no memory for it. */
bool put_output(Call *call, TRITONSERVER_InferenceResponse *response, uint32_t index, Answer *answer, Buffer *message);
/* Give the memory of its outputs back. */
void free_answer(Call *call, Answer *answer);
/* What all outputs of a response come to. */
uint64_t bytes_of(TRITONSERVER_InferenceResponse *response);

#endif
