/* Bodies of inference requests and answers: JSON, optionally followed by binary tensors. Converts values of tensors
 * and parameters from and to JSON.
 */
#ifndef PYTRITON_FRONTEND_HTTP_BODIES_H
#define PYTRITON_FRONTEND_HTTP_BODIES_H

#include "calls/call.h"
#include "json/reader.h"
#include "net/limits.h"

/* Flags of an output's CallTensor. */
enum { OUTPUT_BINARY = 1, OUTPUT_JSON = 2 };

/* Read a request into a call whose model is set. `binary_output` receives the default for outputs. */
bool http_infer_read(Call *call, Slice json, Slice binary, const Limits *limits, bool *binary_output, Problem *problem);

/* ── values in JSON: tensor_data.c ────────────────────────────────────────────────────────────────────── */

/* Read "data", the next value: an array of the elements, nested in any way, or a single value if `alone`. The result
 * becomes the data of the current input.
 */
bool tensor_read(Call *call, const CallTensor *input, Json *json, bool alone, Problem *problem);
/* Count the elements in the next value. The caller's reader does not move. */
uint64_t tensor_count(Json json);

/* Count a text that was refused because of a limit, if that was the reason. */
void json_count_refusal(const Json *json);
/* Read the next value as a parameter of the request, and add it to the call. */
bool parameter_read(Call *call, Slice name, Json *json, Problem *problem);

/* Begin the object of an answer with the request's id, the model and its version. */
void response_head_write(Buffer *text, const CallResponse *response);

/* Write all elements, separated by commas. Returns false with a problem for BYTES that are not text, and for a type
 * that JSON has no numbers for.
 */
bool tensor_write(const ResponseOutput *output, Buffer *text, Problem *problem);
/* Write the parameters of an answer as members of an object. */
void parameters_write(Buffer *text, const CallResponse *response);

#endif
