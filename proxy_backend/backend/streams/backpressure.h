/* Streams that wait until their callers, other models, have read (calls/flow.h). */
#ifndef PYTRITON_BACKEND_STREAMS_BACKPRESSURE_H
#define PYTRITON_BACKEND_STREAMS_BACKPRESSURE_H

#include "streams/state.h"

/* Pause a stream in the worker if its caller has to read first. */
LaneState stream_pause(Streams *streams, Flight *flight, uint32_t index);
/* Forget that a stream was held. */
void stream_clear_pause(Streams *streams, Flight *flight, Stream *stream);
/* Raise the limit of a stream that has been held for long, if others wait. A slow caller must not block others for
 * good; and it may be the same caller, reading two streams in turn.
 */
void flight_raise_limits(Streams *streams, Flight *flight, uint64_t now_ns);
/* Resume a batch's paused streams whose callers have read. If a caller has disconnected, the worker gets a Cancel. */
LaneState flight_resume(Streams *streams, Flight *flight);

#endif
