/* The ends of requests whose clients have disconnected. */
#ifndef PYTRITON_BACKEND_STREAMS_DELAYED_CLOSE_H
#define PYTRITON_BACKEND_STREAMS_DELAYED_CLOSE_H

#include "triton/api.h"

/* End a request in tritonserver after a delay. Takes the factory over. */
void delayed_close(TRITONBACKEND_ResponseFactory *factory);

#endif
