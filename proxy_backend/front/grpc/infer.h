/* ModelInfer and ModelStreamInfer: requests become calls, and answers messages. */
#ifndef PYTRITON_FRONT_GRPC_INFER_H
#define PYTRITON_FRONT_GRPC_INFER_H

#include "calls/call.h"
#include "http2/http2.h"

/* ── infer_request.c ──────────────────────────────────────────────────────────────────────────────── */

/* What a request says to the protocol itself. */
typedef struct {
    Slice id;
    bool empty_final; /* it wants to hear of the end of its answers, in a message of its own */
} InferOptions;

/* Fill a call with a ModelInferRequest, whose bytes are the call's body. */
bool infer_read(Call *call, uint64_t most_inputs, InferOptions *options, Problem *problem);

/* ── infer_contents.c ─────────────────────────────────────────────────────────────────────────────── */

/* Give the input that was begun last the values that an InferTensorContents has. */
bool infer_read_contents(Call *call, const CallTensor *input, Slice contents, Problem *problem);

/* ── infer_reply.c ────────────────────────────────────────────────────────────────────────────────── */

enum { INFER_FEW_PARTS = 9 };

/* A message made of an answer, which it holds until it has been sent. */
typedef struct InferReply {
    Outgoing message;
    struct iovec few[INFER_FEW_PARTS], *parts;
    Text head;
    Answer *answer; /* NULL: none */
    bool is_calls;  /* it lies in the call's state, and its head is the call's text */
} InferReply;

/* How the end of several answers is told. */
typedef enum { INFER_ONCE, INFER_GOES_ON, INFER_ENDS } InferPart;

/* Make a ModelInferResponse of an answer, which is the reply's from now on. `room`: of the call, as it has one answer only. NULL:
 * there is no memory, and the answer has been released. */
InferReply *infer_reply_once(Answer *answer, InferReply *room);
/* Make a ModelStreamInferResponse. */
InferReply *infer_reply_part(Answer *answer, InferPart part);
/* Make one with an error; the answer, which may be NULL, is released. */
InferReply *infer_reply_error(Answer *answer, const char *text, Slice id);

/* ── infer_once.c, infer_stream.c: the calls ──────────────────────────────────────────────────────── */

/* What the calls of both need. */
typedef struct {
    Calls *calls; /* with INFER_STATE bytes of state */
    uint64_t inputs;
    const struct HeaderPattern *forwarded; /* NULL: none */
} InferService;

extern const size_t INFER_STATE;

void infer_once(GrpcStream *stream, const InferService *service, Text *message);
void infer_once_cancelled(GrpcStream *stream);

void infer_stream_begin(GrpcStream *stream, const InferService *service);
void infer_stream_message(GrpcStream *stream, Text *message);
void infer_stream_half_closed(GrpcStream *stream);
void infer_stream_cancelled(GrpcStream *stream);
/* The last reference to the stream has gone. */
void infer_stream_gone(GrpcStream *stream);

#endif
