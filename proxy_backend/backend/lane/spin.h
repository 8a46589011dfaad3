/* Waiting actively for a worker's answer. Waking a thread on another processor takes longer than a small callable does.
 */
#ifndef PYTRITON_BACKEND_LANE_SPIN_H
#define PYTRITON_BACKEND_LANE_SPIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Variable in tritonserver's environment: how many threads may poll at a time, so that they never occupy many processors.
 */
#define ACTIVE_WAITS_VARIABLE "PYTRITON_ACTIVE_WAITS"

/* Whether the receiver of one lane waits actively; zero-initialized. */
typedef struct {
    bool expected; /* the last wait was short, so the next one probably is, too */
    int64_t budget_ns; /* how long failures may still take */
} Spin;

/* recv(2), repeated on EINTR. If the last answer came soon and a processor has nothing else to run, poll for up to 100
 * µs before sleeping. Successes earn the time that failures cost, so without enough successes, this sleeps at once.
 */
ssize_t spin_receive(Spin *spin, int fd, void *to, size_t size);

#endif
