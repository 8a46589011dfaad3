/* Messages that a lane's reader thread sends to the worker. */
#ifndef PYTRITON_BACKEND_STREAMS_STREAM_SEND_H
#define PYTRITON_BACKEND_STREAMS_STREAM_SEND_H
#include "streams/state.h"

/* Send a message about one request of a batch: Cancel, Hold or Go. */
LaneState streams_send_flight_event(Streams *streams, const char *what, const Flight *flight, uint32_t index);
/* Count parts as read. The worker gets the credit for several at once. */
LaneState streams_add_credit(Streams *streams, uint32_t parts);
/* Send the worker credit for all parts that have been read. */
LaneState streams_send_credit(Streams *streams);

/* Make the worker pause a stream if its caller has to read first. */
LaneState stream_pause(Streams *streams, Flight *flight, uint32_t index);
/* Mark a stream as no longer paused. */
void stream_clear_pause(Streams *streams, Flight *flight, Stream *stream);
/* Raise the limits of streams that have been paused for long while others are waiting. A slow caller must not block
 * others, and it may be the same caller that reads two streams in turn.
 */
void flight_raise_limits(Streams *streams, Flight *flight, uint64_t now_ns);
/* Resume the paused streams of a batch whose callers have read. If a caller has disconnected, send the worker a Cancel
 * instead.
 */
LaneState flight_resume(Streams *streams, Flight *flight);

#endif
