/* ModelInfer and ModelStreamInfer: convert requests to calls, and answers to messages. */
#ifndef PYTRITON_FRONTEND_GRPC_INFER_H
#define PYTRITON_FRONTEND_GRPC_INFER_H

#include "calls/call.h"
#include "http2/http2.h"

/* ── infer_request.c ──────────────────────────────────────────────────────────────────────────────── */

/* Options of a request for the protocol itself. */
typedef struct {
    Slice id;
    bool empty_final; /* it asks for a separate final message after its answers */
} InferOptions;

/* Fill a call with a ModelInferRequest, whose bytes are the call's body. */
bool infer_read(Call *call, uint64_t max_inputs, InferOptions *options, Problem *problem);

/* ── infer_contents.c ─────────────────────────────────────────────────────────────────────────────── */

/* Read an InferTensorContents into the current input. */
bool infer_read_contents(Call *call, const CallTensor *input, Slice contents, Problem *problem);

/* ── infer_reply.c ────────────────────────────────────────────────────────────────────────────────── */

enum { INFER_FEW_PARTS = 9 };

/* A message made from an answer, which it holds until it has been sent. */
typedef struct InferReply {
    Outgoing message;
    struct iovec few[INFER_FEW_PARTS], *parts;
    Buffer head;
    CallResponse *response; /* NULL: none */
    bool is_calls;  /* it is in the call's state, and its head is the call's text */
} InferReply;

/* How the end of the answers is reported. */
typedef enum { INFER_UNARY, INFER_CONTINUES, INFER_ENDS } InferPart;

/* Convert an answer, which the reply takes over, to a ModelInferResponse. `room`: the call's, since it has only one
 * answer. NULL without memory; the answer has then been released.
 */
InferReply *infer_reply_unary(CallResponse *response, InferReply *room);
/* Convert an answer to a ModelStreamInferResponse. */
InferReply *infer_reply_part(CallResponse *response, InferPart part);
/* Create one with an error; the answer, which may be NULL, is released. */
InferReply *infer_reply_error(CallResponse *response, const char *text, Slice id);

/* ── infer_unary.c, infer_stream.c: the calls ──────────────────────────────────────────────────────── */

/* Used by the calls of both. */
typedef struct {
    Calls *calls; /* with INFER_STATE bytes of state */
    uint64_t inputs;
    const struct HeaderPattern *forwarded; /* NULL: none */
} InferService;

extern const size_t INFER_STATE;

void infer_unary(GrpcStream *stream, const InferService *service, Buffer *message);
void infer_unary_cancelled(GrpcStream *stream);

void infer_stream_begin(GrpcStream *stream, const InferService *service);
void infer_stream_message(GrpcStream *stream, Buffer *message);
void infer_stream_half_closed(GrpcStream *stream);
void infer_stream_cancelled(GrpcStream *stream);
/* Called when the last reference to the stream is dropped. */
void infer_stream_gone(GrpcStream *stream);

#endif
