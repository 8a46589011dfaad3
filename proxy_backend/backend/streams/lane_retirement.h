/* Lanes on which nothing more may be sent. */
#ifndef PYTRITON_BACKEND_STREAMS_LANE_RETIREMENT_H
#define PYTRITON_BACKEND_STREAMS_LANE_RETIREMENT_H

#include "streams/state.h"

/* Leave the lane of a retiring worker, so that the next batch uses another lane. Called by its reader. Returns the
 * streams that the reader continues with.
 */
Streams *streams_leave_lane(Streams *streams);

#endif
