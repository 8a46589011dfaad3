/* Sequences in progress: the core has their state, so no other process can continue them. A sequence is in progress
 * from its first request until the core has accepted its last one, or has received none for as long as the model's
 * configuration allows (max_sequence_idle_microseconds). Any thread.
 */
#ifndef PYTRITON_FRONTEND_CALLS_SEQUENCES_H
#define PYTRITON_FRONTEND_CALLS_SEQUENCES_H

#include "core/server.h"

typedef struct Sequence Sequence;

/* A request of a sequence is about to be passed to the core; `flags` are the core's. `*sequence`: NULL if it belongs
 * to none in progress. Returns false if it would begin one, and none may begin here any more.
 */
bool sequence_request(Server *server, const char *model, const char *id, uint32_t flags, Sequence **sequence);
/* The core has answered the request completely, or has refused it. NULL: does nothing. */
void sequence_request_done(Sequence *sequence);
/* Allow no new sequences, unless some are in progress. Returns their number. */
uint64_t sequences_close(void);
/* Returns how many are in progress. */
uint64_t sequences_count(void);

#endif
