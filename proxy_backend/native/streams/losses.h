/* Batches that have lost their worker, or take too long. */
#ifndef PYTRITON_LOSSES_H
#define PYTRITON_LOSSES_H

#include "streams/shared.h"

/* Ask the dispatcher for a verdict about a batch that has taken too long. */
void flight_judge(Streams *streams, Flight *flight, uint64_t now_ns);
/* The lane has ended: answer the batches that had begun, and send the others again if permitted. Returns true if
 * tritonserver has dropped the instance.
 */
bool streams_lost(Streams *streams, LaneState state);

#endif
