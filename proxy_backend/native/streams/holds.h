/* Streams that wait until their callers, other models, have read (calls/flow.h). */
#ifndef PYTRITON_HOLDS_H
#define PYTRITON_HOLDS_H

#include "streams/shared.h"

/* Have the worker wait if the caller of a stream has to read first. */
LaneState stream_hold(Streams *streams, Flight *flight, uint32_t index);
/* Forget that a stream was held. */
void stream_let_go(Streams *streams, Flight *flight, Stream *stream);
/* Let more be unread of what has been held for long, if others wait. One slow caller shall not stop others for good; and it
 * may be the same one, which reads two streams in turn. */
void flight_relent(Streams *streams, Flight *flight, uint64_t now_ns);
/* Have the worker go on with what was held of a batch, if its callers have read. Where they have gone, it gets a Cancel. */
LaneState flight_go_on(Streams *streams, Flight *flight);

#endif
