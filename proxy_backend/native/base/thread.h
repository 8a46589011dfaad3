/* Our threads in tritonserver's process. */
#ifndef PYTRITON_THREAD_H
#define PYTRITON_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

/* Start a thread that leaves signals to the process it is in, with so many bytes of stack; 0: as many as is usual. False: it
 * cannot be started. */
enum { SMALL_STACK = 1 << 20 };
bool start_thread(pthread_t *thread, size_t stack, void *(*run)(void *), void *argument);

#endif
