/* Memory of GPUs that other processes share, by CUDA's runtime, which is loaded when it is needed. */
#ifndef PYTRITON_FRONT_CUDA_H
#define PYTRITON_FRONT_CUDA_H

#include "base/problem.h"

/* Map what a handle of cudaIpcGetMemHandle (64 bytes) tells of, on that GPU. */
bool cuda_open(Slice handle, int64_t device, uint64_t size, void **base, Problem *problem);
void cuda_close(void *base);

#endif
