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

#endif
