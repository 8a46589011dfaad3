/* What the reader of a lane tells the worker. */
#ifndef PYTRITON_TELLING_H
#define PYTRITON_TELLING_H

#include "streams/shared.h"

/* Say something of one request: Cancel, Hold or Go. */
LaneState tell_of(Streams *streams, const char *what, const Flight *flight, uint32_t index);
/* One part more has been read. The worker hears of several at once. */
LaneState take_credit(Streams *streams);
/* Give back what has been read. */
LaneState give_credit(Streams *streams);

#endif
