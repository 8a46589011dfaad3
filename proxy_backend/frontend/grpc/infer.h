/* ModelInfer and ModelStreamInfer. Converts requests to calls, and answers to messages. */
#ifndef PYTRITON_FRONTEND_GRPC_INFER_H
#define PYTRITON_FRONTEND_GRPC_INFER_H

#include "calls/call.h"
#include "http2/http2.h"

/* ── infer_request.c ──────────────────────────────────────────────────────────────────────────────── */

/* Options of a request that concern the protocol itself. */
typedef struct {
    Slice id;
    bool empty_final; /* a separate message marks the end of the answers */
} InferOptions;

/* Fill a call with a ModelInferRequest, whose bytes are the call's body. */
bool infer_read(Call *call, uint64_t max_inputs, InferOptions *options, Problem *problem);

/* ── infer_contents.c ─────────────────────────────────────────────────────────────────────────────── */

/* Read an InferTensorContents as the data of the current input. */
bool infer_read_contents(Call *call, const CallTensor *input, Slice contents, Problem *problem);

/* ── infer_reply.c ────────────────────────────────────────────────────────────────────────────────── */

enum { INFER_FEW_PARTS = 9 };

/* A message made from an answer, which it keeps until the message has been sent. */
typedef struct InferReply {
    Outgoing message;
    struct iovec few[INFER_FEW_PARTS], *parts;
    Buffer head;
    CallResponse *response; /* the answer, or NULL */
    bool is_calls;  /* it is part of the call's state, and its text is the call's buffer */
} InferReply;

/* Whether and how a message reports the end of the answers. */
typedef enum { INFER_UNARY, INFER_CONTINUES, INFER_ENDS } InferPart;

/* Convert an answer to a ModelInferResponse. Takes ownership of the answer. `room` is the reply in the call's state,
 * since a call has only one answer. Returns NULL without memory, after releasing the answer.
 */
InferReply *infer_reply_unary(CallResponse *response, InferReply *room);
/* Convert an answer to a ModelStreamInferResponse. Takes ownership of the answer. */
InferReply *infer_reply_part(CallResponse *response, InferPart part);
/* Create a ModelStreamInferResponse with an error. Releases the answer, which may be NULL. */
InferReply *infer_reply_error(CallResponse *response, const char *text, Slice id);

/* ── infer_unary.c, infer_stream.c: the calls ──────────────────────────────────────────────────────── */

/* What both kinds of calls need. */
typedef struct {
    Calls *calls; /* with INFER_STATE bytes of protocol state */
    uint64_t inputs;
    const struct HeaderPattern *forwarded; /* headers to forward, or NULL */
} InferService;

extern const size_t INFER_STATE;

void infer_unary(GrpcStream *stream, const InferService *service, Buffer *message);
void infer_unary_cancelled(GrpcStream *stream);

void infer_stream_begin(GrpcStream *stream, const InferService *service);
void infer_stream_message(GrpcStream *stream, Buffer *message);
void infer_stream_half_closed(GrpcStream *stream);
void infer_stream_cancelled(GrpcStream *stream);
/* Called when the last reference to a stream is dropped. */
void infer_stream_gone(GrpcStream *stream);

#endif
