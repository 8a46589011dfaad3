/* The bodies of inferences: JSON, and the binary tensors that may follow it; values of tensors and parameters in JSON, both ways. */
#ifndef PYTRITON_FRONT_HTTP_BODIES_H
#define PYTRITON_FRONT_HTTP_BODIES_H

#include "calls/call.h"
#include "json/reader.h"
#include "net/limits.h"

/* Flags of a CallTensor that is an output. */
enum { OUTPUT_BINARY = 1, OUTPUT_JSON = 2 };

/* Put what a request says into a call, whose model is known. `binary_output`: what the request wants where an output does not say otherwise. */
bool http_infer_read(Call *call, Slice json, Slice binary, const Limits *limits, bool *binary_output, Problem *problem);

/* ── values in JSON: tensor_data.c ────────────────────────────────────────────────────────────────────── */

/* Read "data", which comes next: an array of the tensor's elements, in arrays in it as they please. Or one value alone, where `alone` allows it. The bytes are
 * given to the call as the data of the input that was begun last. */
bool tensor_read(Call *call, const CallTensor *input, Json *json, bool alone, Problem *problem);
/* How many values are in what comes next, which is not read by that. */
uint64_t tensor_count(Json json);

/* Count a fault of the text itself. */
void json_count_refusal(const Json *json);
/* Read the value of a request's parameter, which comes next, and put it into the call. */
bool parameter_read(Call *call, Slice name, Json *json, Problem *problem);

/* Begin an answer's object: the request's id, the model and its version. */
void answer_head_write(Text *text, const Answer *answer);

/* Write all elements with commas between them. The problem: BYTES that are no text, or a type that JSON has no numbers for. */
bool tensor_write(const AnswerOutput *output, Text *text, Problem *problem);
/* Write members of an object: the answer's parameters. */
void parameters_write(Text *text, const Answer *answer);

#endif
