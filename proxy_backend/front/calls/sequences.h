/* Sequences that clients have begun and not ended: the core has their state, which no other process can go on with.
 *
 * A sequence is in progress from its first request on until the core has taken its last one, or has had none for as long as the model's
 * configuration allows (max_sequence_idle_microseconds). Any thread.
 */
#ifndef PYTRITON_FRONT_SEQUENCES_H
#define PYTRITON_FRONT_SEQUENCES_H

#include "core/server.h"

typedef struct Sequence Sequence;

/* A request of a sequence is about to be given to the core; `flags` are the core's. `*sequence`: NULL, it belongs to none that is in progress. False: it
 * would begin one, and none may begin here any more. */
bool sequence_request(Server *server, const char *model, const char *id, uint32_t flags, Sequence **sequence);
/* The core has answered it in full, or has not taken it. NULL: nothing is to be done. */
void sequence_request_done(Sequence *sequence);
/* Let none begin here any more, unless some are in progress: their number. */
uint64_t sequences_close(void);
/* How many are in progress. */
uint64_t sequences_count(void);

#endif
