/* Creates the tritonserver request for a call to another model. */
#ifndef PYTRITON_BACKEND_CALLS_CALL_REQUEST_H
#define PYTRITON_BACKEND_CALLS_CALL_REQUEST_H

#include "calls/call_message.h"
#include "lane/call_connection.h"
#include "calls/flow.h"
#include "triton/inference_api.h"

/* The error of a call. `text` is for free(), and NULL if there is no error. `code` is the name of Triton's error code.
 */
typedef struct {
    char *text;
    const char *code;
} CallError;

/* Create the request. Its inputs are copied to `inputs`, which must be freed when the request is released. `flow` is
 * the flow control of a stream, or NULL.
 */
CallError call_request_new(TRITONSERVER_Server *server, CallConnection *connection, const CallMessage *call,
    const char *model, const Flow *flow, TRITONSERVER_InferenceRequest **request, uint8_t **inputs);

/* Convert and free an error of tritonserver. The `text` of the result is NULL if `error` is. */
CallError call_error_from(TRITONSERVER_Error *error);

#endif
