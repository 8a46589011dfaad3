/* The tritonserver request for a call to another model. */
#ifndef PYTRITON_BACKEND_CALLS_CALL_REQUEST_H
#define PYTRITON_BACKEND_CALLS_CALL_REQUEST_H

#include "calls/call_message.h"
#include "lane/call_connection.h"
#include "calls/flow.h"
#include "triton/inference_api.h"

/* The error of a call. `text` is for free(), NULL if there is no error; `code` is the name of Triton's code. */
typedef struct {
    char *text;
    const char *code;
} CallError;

/* Create the request; its inputs are copied to `inputs`, for free() on its release. `flow`: the stream's, or NULL. */
CallError call_request_new(TRITONSERVER_Server *server, CallConnection *connection, const CallMessage *call,
    const char *model, const Flow *flow, TRITONSERVER_InferenceRequest **request, uint8_t **inputs);

/* Convert an error of tritonserver to a CallError, and free it. `text` is NULL if there was none. */
CallError call_error_from(TRITONSERVER_Error *error);

#endif
