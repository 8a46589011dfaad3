/* Streams that wait until their callers, other models, have read (calls/flow.h). */
#ifndef PYTRITON_HOLDS_H
#define PYTRITON_HOLDS_H

#include "streams/shared.h"

/* Pause a stream in the worker if its caller has to read first. */
LaneState stream_hold(Streams *streams, Flight *flight, uint32_t index);
/* Forget that a stream was held. */
void stream_let_go(Streams *streams, Flight *flight, Stream *stream);
/* Raise the limit of a stream that has been held for long, if others wait. A slow caller must not block others for
 * good; and it may be the same caller, reading two streams in turn.
 */
void flight_relent(Streams *streams, Flight *flight, uint64_t now_ns);
/* Resume a batch's held streams whose callers have read. If a caller has disconnected, the worker gets a Cancel. */
LaneState flight_go_on(Streams *streams, Flight *flight);

#endif
