/* Handles batches whose worker was lost, or that take too long. */
#ifndef PYTRITON_BACKEND_STREAMS_WORKER_LOST_H
#define PYTRITON_BACKEND_STREAMS_WORKER_LOST_H
#include "streams/state.h"

/* Report a batch that takes too long to the dispatcher, and apply the verdict. */
void flight_report_overdue(Streams *streams, Flight *flight, uint64_t now_ns);
/* Handle the end of a lane: fail the batches that had begun, and send the others again if permitted. Returns true if
 * tritonserver has dropped the instance.
 */
bool streams_handle_lost_lane(Streams *streams, LaneState state);

/* Leave the lane of a retiring worker, so that the next batch gets another lane. Only the reader thread calls this.
 * Returns the streams for which the reader continues.
 */
Streams *streams_leave_lane(Streams *streams);

#endif
