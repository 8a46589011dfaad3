/* The ends of requests whose clients have disconnected. */
#ifndef PYTRITON_ENDINGS_H
#define PYTRITON_ENDINGS_H

#include "triton/api.h"

/* End a request in tritonserver after a delay. Takes the factory over. */
void end_later(TRITONBACKEND_ResponseFactory *factory);

#endif
