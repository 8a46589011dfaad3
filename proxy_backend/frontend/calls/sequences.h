/* Sequences in progress. The core holds their state, so no other process can continue them. A sequence is in progress
 * from its first request until the core has accepted its last one, or has received none for the idle limit of the
 * model's configuration (max_sequence_idle_microseconds). Any thread.
 */
#ifndef PYTRITON_FRONTEND_CALLS_SEQUENCES_H
#define PYTRITON_FRONTEND_CALLS_SEQUENCES_H

#include "core/server.h"

typedef struct Sequence Sequence;

/* Register a request that is about to be passed to the core with these flags. `*sequence` is NULL if it belongs to no
 * sequence in progress. Returns false if the request would begin a sequence and no new ones are allowed.
 */
bool sequence_request(Server *server, const char *model, const char *id, uint32_t flags, Sequence **sequence);
/* The core has answered the request completely, or refused it. `sequence` may be NULL. */
void sequence_request_done(Sequence *sequence);
/* Allow no new sequences, unless some are in progress. Returns the number of those in progress. */
uint64_t sequences_close(void);
/* Returns the number of sequences in progress. */
uint64_t sequences_count(void);

#endif
