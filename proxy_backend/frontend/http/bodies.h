/* The bodies of inferences: JSON, and the binary tensors that may follow it; conversion of tensor values and
 * parameters from and to JSON.
 */
#ifndef PYTRITON_FRONTEND_HTTP_BODIES_H
#define PYTRITON_FRONTEND_HTTP_BODIES_H

#include "calls/call.h"
#include "json/reader.h"
#include "net/limits.h"

/* Flags of a CallTensor that is an output. */
enum { OUTPUT_BINARY = 1, OUTPUT_JSON = 2 };

/* Read a request into a call whose model is set. `binary_output`: the request's default for outputs. */
bool http_infer_read(Call *call, Slice json, Slice binary, const Limits *limits, bool *binary_output, Problem *problem);

/* ── values in JSON: tensor_data.c ────────────────────────────────────────────────────────────────────── */

/* Read "data", the next value: an array of the tensor's elements, nested in any way, or a single value if `alone`
 * allows it. The bytes become the data of the current input.
 */
bool tensor_read(Call *call, const CallTensor *input, Json *json, bool alone, Problem *problem);
/* Count the values in the next value, without reading it. */
uint64_t tensor_count(Json json);

/* Count a malformed text. */
void json_count_refusal(const Json *json);
/* Read the next value as a request's parameter, and add it to the call. */
bool parameter_read(Call *call, Slice name, Json *json, Problem *problem);

/* Begin an answer's object: the request's id, the model and its version. */
void response_head_write(Buffer *text, const CallResponse *response);

/* Write all elements, separated by commas. The problem: BYTES that are not text, or a type that JSON has no numbers
 * for.
 */
bool tensor_write(const ResponseOutput *output, Buffer *text, Problem *problem);
/* Write the answer's parameters as members of an object. */
void parameters_write(Buffer *text, const CallResponse *response);

#endif
