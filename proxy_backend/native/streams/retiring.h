/* Lanes on which nothing more may be sent. */
#ifndef PYTRITON_RETIRING_H
#define PYTRITON_RETIRING_H

#include "streams/shared.h"

/* Leave a lane whose worker retires, so that the next batch goes over another one; called by its reader. Returns what the
 * reader goes on with. */
Streams *streams_part(Streams *streams);

#endif
