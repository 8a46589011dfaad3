/* What tritonserver answers to calls. */
#ifndef PYTRITON_CALL_ANSWERS_H
#define PYTRITON_CALL_ANSWERS_H

#include "calls/call.h"

/* Give a request to tritonserver; its answers go to the worker. Not with the lock held. */
CallError call_start(Call *call);

/* With the lock held: */
/* End a call: with an error, or where `text` is NULL without one; what still comes is thrown away. */
void call_end(Call *call, const char *text, const char *code);
/* The same, and tell tritonserver that nobody waits for it. */
void call_drop(Call *call, const char *text, const char *code);
/* The worker has read the oldest answer. False: it had none. `final`: it was the last one. */
bool call_read_one(Call *call, bool *final);
/* The worker is gone. */
void call_forget(Call *call);

#endif
