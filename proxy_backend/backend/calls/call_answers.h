/* tritonserver's answers to calls. */
#ifndef PYTRITON_BACKEND_CALLS_CALL_ANSWERS_H
#define PYTRITON_BACKEND_CALLS_CALL_ANSWERS_H

#include "calls/call.h"

/* Pass a request to tritonserver; its answers go to the worker. The caller must not hold the lock. */
CallError call_start(Call *call);

/* With the lock held: */
/* End a call, with an error unless `text` is NULL. Later answers are discarded. */
void call_end(Call *call, const char *text, const char *code);
/* Ask the model of a call to stop; answers that it still sends are passed on. */
void call_cancel(Call *call);
/* End a call as call_end does, and cancel it in tritonserver. */
void call_drop(Call *call, const char *text, const char *code);
/* Release the oldest answer, which the worker has read. Returns false if there was none. `final`: it was the last
 * one.
 */
bool call_release_oldest(Call *call, bool *final);
/* Drop all answers of a call: the worker is gone. */
void call_discard(Call *call);

#endif
