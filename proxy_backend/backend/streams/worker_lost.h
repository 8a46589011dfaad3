/* Batches that have lost their worker, or take too long. */
#ifndef PYTRITON_BACKEND_STREAMS_WORKER_LOST_H
#define PYTRITON_BACKEND_STREAMS_WORKER_LOST_H
#include "streams/state.h"

/* Ask the dispatcher for a verdict about a batch that has taken too long. */
void flight_report_overdue(Streams *streams, Flight *flight, uint64_t now_ns);
/* The lane has ended: answer the batches that had begun, and send the others again if permitted. Returns true if
 * tritonserver has dropped the instance.
 */
bool streams_handle_lost_lane(Streams *streams, LaneState state);

/* Leave the lane of a retiring worker, so that the next batch uses another lane. Called by its reader. Returns the
 * streams that the reader continues with.
 */
Streams *streams_leave_lane(Streams *streams);

#endif
