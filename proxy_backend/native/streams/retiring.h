/* Lanes on which nothing more may be sent. */
#ifndef PYTRITON_RETIRING_H
#define PYTRITON_RETIRING_H

#include "streams/shared.h"

/* Leave the lane of a retiring worker, so that the next batch uses another lane. Called by its reader. Returns the
 * streams that the reader continues with.
 */
Streams *streams_part(Streams *streams);

#endif
