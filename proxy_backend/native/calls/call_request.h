/* The request to tritonserver for a call to another model. */
#ifndef PYTRITON_CALL_REQUEST_H
#define PYTRITON_CALL_REQUEST_H

#include "calls/call_message.h"
#include "lane/connection.h"
#include "calls/flow.h"
#include "triton/inference_api.h"

/* The error of a call; `text` is NULL without one, else for free(), and `code` is the name of Triton's code. */
typedef struct {
    char *text;
    const char *code;
} CallError;

/* Make the request; its inputs are copied into `inputs`, for free() when it is released. `flow`: that of a stream, or NULL. */
CallError request_make(TRITONSERVER_Server *server, Connection *connection, const CallMessage *call, const char *model,
    const Flow *flow, TRITONSERVER_InferenceRequest **request, uint8_t **inputs);

/* Turn an error of tritonserver's into a CallError, and free it. `text` is NULL where there was none. */
CallError call_error_of(TRITONSERVER_Error *error);

#endif
