#define _GNU_SOURCE
#include "lane/spin.h"

#include "common/clock.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>

/* How long to poll, and the longest wait after which the next one may be short enough: it includes the time in which a
 * sleeping thread wakes up.
 */
enum { SPIN_NS = 100000, EXPECTED_NS = 2 * SPIN_NS };
/* When yielding the processor takes this long, something else runs on it. */
enum { BUSY_NS = 100000 };
/* What polling must not cost more than: a success earns the time of a wake-up, up to a limit. Without any left, each
 * wait earns enough to try again at times.
 */
enum { EARNED_NS = 20000, EARNED_BY_WAITING_NS = 2000, MAX_BUDGET_NS = 1000000 };

/* Number of threads of this process that may still start to poll. */
static atomic_int places;
static pthread_once_t counted = PTHREAD_ONCE_INIT;

static void count_places(void)
{
    const char *most = getenv(ACTIVE_WAITS_VARIABLE);
    atomic_store(&places, most ? (int)strtol(most, NULL, 10) : 0);
}

static bool take_place(void)
{
    pthread_once(&counted, count_places);
    if (atomic_fetch_sub(&places, 1) > 0)
        return true;
    atomic_fetch_add(&places, 1);
    return false;
}

static ssize_t receive(int fd, void *to, size_t size, int flags)
{
    ssize_t received;
    do
        received = recv(fd, to, size, flags);
    while (received < 0 && errno == EINTR);
    return received;
}

/* Poll for a message. Returns false if none has arrived in time, or if the processor is needed. */
static bool poll_actively(int fd, void *to, size_t size, ssize_t *received, uint64_t begun_ns)
{
    uint64_t last_ns = begun_ns;
    while (last_ns - begun_ns < SPIN_NS) {
        *received = receive(fd, to, size, MSG_DONTWAIT);
        if (*received >= 0 || errno != EAGAIN)
            return true;
        sched_yield();
        uint64_t now_ns = clock_ns();
        if (now_ns - last_ns > BUSY_NS)
            return false;
        last_ns = now_ns;
    }
    return false;
}

ssize_t spin_receive(Spin *spin, int fd, void *to, size_t size)
{
    ssize_t received;
    if (spin->budget_ns <= 0) {
        spin->budget_ns += EARNED_BY_WAITING_NS;
        return receive(fd, to, size, 0);
    }
    uint64_t begun_ns = clock_ns();
    if (!spin->expected || !take_place()) {
        received = receive(fd, to, size, 0);
        spin->expected = clock_ns() - begun_ns < EXPECTED_NS;
        return received;
    }
    bool arrived = poll_actively(fd, to, size, &received, begun_ns);
    atomic_fetch_add(&places, 1);
    if (arrived) {
        spin->budget_ns += EARNED_NS;
        if (spin->budget_ns > MAX_BUDGET_NS)
            spin->budget_ns = MAX_BUDGET_NS;
        return received;
    }
    spin->expected = false;
    spin->budget_ns -= (int64_t)(clock_ns() - begun_ns);
    return receive(fd, to, size, 0);
}
