/* Batches that have lost their worker, or take too long. */
#ifndef PYTRITON_LOSSES_H
#define PYTRITON_LOSSES_H

#include "streams/shared.h"

/* Ask the dispatcher for a verdict about a batch that has taken too long. */
void flight_judge(Streams *streams, Flight *flight, uint64_t now_ns);
/* The lane has ended: answer what had begun, and let what had not be sent again, if it may. True: tritonserver knows the
 * instance no more. */
bool streams_lost(Streams *streams, LaneState state);

#endif
