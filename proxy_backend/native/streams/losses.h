/* Batches whose worker is lost, or takes too long. */
#ifndef PYTRITON_LOSSES_H
#define PYTRITON_LOSSES_H

#include "streams/shared.h"

/* A batch has taken too long: ask the dispatcher what becomes of it. */
void flight_judge(Streams *streams, Flight *flight, uint64_t now_ns);
/* The lane has ended: answer what had begun, and let what had not be sent again, if it may. True: tritonserver knows the
 * instance no more. */
bool streams_lost(Streams *streams, LaneState state);

#endif
