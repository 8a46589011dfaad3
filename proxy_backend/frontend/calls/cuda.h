/* GPU memory that other processes share, accessed through the CUDA runtime, which is loaded when it is first needed. */
#ifndef PYTRITON_FRONTEND_CALLS_CUDA_H
#define PYTRITON_FRONTEND_CALLS_CUDA_H

#include "base/problem.h"

/* Map the memory of a cudaIpcGetMemHandle handle (64 bytes) on the given GPU. */
bool cuda_open(Slice handle, int64_t device, uint64_t size, void **base, Problem *problem);
void cuda_close(void *base);

#endif
