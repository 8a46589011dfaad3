/* The outputs of answers to calls, and their memory. */
#ifndef PYTRITON_CALL_OUTPUTS_H
#define PYTRITON_CALL_OUTPUTS_H

#include "calls/call.h"

enum { LONGEST_TEXT = 1 << 15 };

/* The allocator of the outputs of calls for tritonserver; its argument is the call. NULL: there is no memory. */
TRITONSERVER_ResponseAllocator *call_outputs_allocator(void);
/* Put an output into an answer. False: there is no memory for it. */
bool put_output(Call *call, TRITONSERVER_InferenceResponse *response, uint32_t index, Answer *answer, Buffer *message);
/* Give back the memory of an answer's outputs. */
void free_answer(Call *call, Answer *answer);
/* The bytes of all outputs of a response. */
uint64_t bytes_of(TRITONSERVER_InferenceResponse *response);

#endif
