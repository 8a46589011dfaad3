/* Messages of a lane's reader to the worker. */
#ifndef PYTRITON_TELLING_H
#define PYTRITON_TELLING_H

#include "streams/shared.h"

/* Send a message about one request: Cancel, Hold or Go. */
LaneState tell_of(Streams *streams, const char *what, const Flight *flight, uint32_t index);
/* Count this many parts as read. The worker gets the credit for several at once. */
LaneState take_credit(Streams *streams, uint32_t parts);
/* Send the credit for all parts that have been read, if any. */
LaneState give_credit(Streams *streams);

#endif
