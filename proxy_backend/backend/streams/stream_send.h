/* Messages of a lane's reader to the worker. */
#ifndef PYTRITON_BACKEND_STREAMS_STREAM_SEND_H
#define PYTRITON_BACKEND_STREAMS_STREAM_SEND_H
#include "streams/state.h"

/* Send a message about one request: Cancel, Hold or Go. */
LaneState streams_send_flight_event(Streams *streams, const char *what, const Flight *flight, uint32_t index);
/* Count this many parts as read. The worker gets the credit for several at once. */
LaneState streams_add_credit(Streams *streams, uint32_t parts);
/* Send the credit for all parts that have been read, if any. */
LaneState streams_send_credit(Streams *streams);

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
