/* The ends of requests whose clients have gone. */
#ifndef PYTRITON_ENDINGS_H
#define PYTRITON_ENDINGS_H

#include "triton/api.h"

/* Tell tritonserver that no more answers come, but not at once. The factory is not the caller's any more. */
void end_later(TRITONBACKEND_ResponseFactory *factory);

#endif
