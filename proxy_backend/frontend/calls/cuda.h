/* GPU memory shared by other processes, using the CUDA runtime, which is loaded on demand. */
#ifndef PYTRITON_FRONTEND_CALLS_CUDA_H
#define PYTRITON_FRONTEND_CALLS_CUDA_H

#include "base/problem.h"

/* Map the memory of a handle of cudaIpcGetMemHandle (64 bytes) on that GPU. */
bool cuda_open(Slice handle, int64_t device, uint64_t size, void **base, Problem *problem);
void cuda_close(void *base);

#endif
