/* Our threads in tritonserver's process. */
#ifndef PYTRITON_THREAD_H
#define PYTRITON_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

/* Start a thread with all signals blocked and a stack of this size (0: the default). Returns false if it cannot be
 * started.
 */
enum { SMALL_STACK = 1 << 20 };
bool start_thread(pthread_t *thread, size_t stack, void *(*run)(void *), void *argument);

#endif
