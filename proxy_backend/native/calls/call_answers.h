/* The answers of tritonserver to calls. */
#ifndef PYTRITON_CALL_ANSWERS_H
#define PYTRITON_CALL_ANSWERS_H

#include "calls/call.h"

/* Give a request to tritonserver; its answers go to the worker. The caller does not hold the lock. */
CallError call_start(Call *call);

/* With the lock held: */
/* End a call, with an error unless `text` is NULL; later answers are thrown away. */
void call_end(Call *call, const char *text, const char *code);
/* Ask the model of a call to stop; what it still answers is passed on. */
void call_cancel(Call *call);
/* End a call likewise, and cancel it in tritonserver. */
void call_drop(Call *call, const char *text, const char *code);
/* Release the oldest answer, which the worker has read. False: there was none. `final`: it was the last one. */
bool call_read_one(Call *call, bool *final);
/* Give all calls up: the worker is gone. */
void call_forget(Call *call);

#endif
