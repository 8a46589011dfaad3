/* Starts our own threads in tritonserver's process. */
#ifndef PYTRITON_BACKEND_BASE_THREAD_H
#define PYTRITON_BACKEND_BASE_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

/* Start a thread with all signals blocked. `stack` is its stack size in bytes; 0 means the default. Returns false if
 * the thread cannot be started.
 */
enum { THREAD_SMALL_STACK = 1 << 20 };
bool thread_start(pthread_t *thread, size_t stack, void *(*run)(void *), void *argument);

#endif
