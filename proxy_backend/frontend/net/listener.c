#define _GNU_SOURCE
#include "net/listener.h"

#include "base/log.h"
#include "net/connection_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
    TURN_CONNECTIONS = 64, /* connections accepted before the loop's other work gets its turn */
    PAUSE_MS = 100,        /* after the kernel lacked resources for another connection */
    LOG_INTERVAL_MS = 10000,  /* between two log lines about that */
};

struct Listener {
    Watch watch;
    Timer pause;
    Loop *loop;
    const Endpoint *endpoint;
    int spare; /* a reserve descriptor, closed when there are no others so that a client can be notified */
    bool watched;
    uint64_t logged_ms;
};

static int open_spare(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* Send the reason in the form of the protocol, and close the connection. */
static void refuse(Listener *listener, int fd, Refusal refusal)
{
    const Endpoint *endpoint = listener->endpoint;
    refusals_count(refusal);
    if (endpoint->protocol->refusal && endpoint->tls == NULL) {
        Slice said = endpoint->protocol->refusal(refusal);
        if (said.size && send(fd, said.start, said.size, MSG_NOSIGNAL | MSG_DONTWAIT) > 0)
            shutdown(fd, SHUT_WR);
    }
    close(fd);
}

static void begin(Listener *listener, int fd, const struct sockaddr_storage *from)
{
    const Endpoint *endpoint = listener->endpoint;
    uint64_t most = endpoint->limits->connections_per_address;
    Address address = address_from(from);
    bool is_counted = !endpoint->is_admin && most;
    if (!endpoint->is_admin && !connections_admit(endpoint->limits)) {
        refuse(listener, fd, REFUSED_CONNECTIONS);
        return;
    }
    if (is_counted && !addresses_add(&address, most)) {
        connections_remove();
        refuse(listener, fd, REFUSED_CONNECTIONS_PER_ADDRESS);
        return;
    }
    connection_begin(listener->loop, endpoint, fd, &address, is_counted);
}

static void log_accept_error(Listener *listener, int error)
{
    uint64_t now_ms = loop_now_ms(listener->loop);
    if (listener->logged_ms && now_ms - listener->logged_ms < LOG_INTERVAL_MS)
        return;
    listener->logged_ms = now_ms;
    log_warning("cannot accept connections (%s): %s", listener->endpoint->protocol->name, strerror(error));
}

static void pause_accepting(Listener *listener)
{
    loop_unwatch(listener->loop, &listener->watch);
    listener->watched = false;
    loop_set_timer(listener->loop, &listener->pause, loop_now_ms(listener->loop) + PAUSE_MS);
}

static void resume_accepting(Timer *timer)
{
    Listener *listener = (Listener *)((char *)timer - offsetof(Listener, pause));
    if (listener->spare < 0)
        listener->spare = open_spare();
    listener->watched = loop_watch(listener->loop, &listener->watch, EPOLLIN | EPOLLEXCLUSIVE);
    if (!listener->watched)
        loop_set_timer(listener->loop, &listener->pause, loop_now_ms(listener->loop) + PAUSE_MS);
}

/* Without a descriptor for another connection, use the spare one to refuse it. Otherwise, the client would wait
 * forever, and epoll would report it again and again.
 */
static bool reject_with_spare(Listener *listener, int error)
{
    log_accept_error(listener, error);
    if (error != EMFILE || listener->spare < 0)
        return false;
    close(listener->spare);
    int fd = accept4(listener->watch.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0)
        refuse(listener, fd, REFUSED_DESCRIPTORS);
    listener->spare = open_spare();
    return fd >= 0 && listener->spare >= 0;
}

static void accept_some(Watch *watch, uint32_t events)
{
    Listener *listener = (Listener *)((char *)watch - offsetof(Listener, watch));
    (void)events;
    for (int i = 0; i < TURN_CONNECTIONS; i++) {
        struct sockaddr_storage from = {0};
        socklen_t size = sizeof from;
        int fd = accept4(watch->fd, (struct sockaddr *)&from, &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            begin(listener, fd, &from);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            if (!reject_with_spare(listener, errno)) {
                pause_accepting(listener);
                return;
            }
        } else if (errno == EINVAL || errno == EBADF || errno == ENOTSOCK || errno == EOPNOTSUPP) {
            log_accept_error(listener, errno); /* The socket does not listen any more. Waiting would not help. */
            loop_unwatch(listener->loop, watch);
            listener->watched = false;
            return;
        } /* Other errors concern only the connection that was to be accepted. */
    }
}

/* Set options that accepted connections inherit from the listening socket. */
static bool prepare(int fd, Problem *problem)
{
    const int on = 1, idle_s = 60, interval_s = 15, probes = 4;
    int listens = 0, flags = fcntl(fd, F_GETFL);
    socklen_t size = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || !listens)
        return problem_set(problem, PROBLEM_INVALID, "descriptor %d is not a listening socket", fd);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
        return problem_set(problem, PROBLEM_INTERNAL, "descriptor %d: %s", fd, strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* Has no effect on a unix socket. */
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    return true;
}

Listener *listener_open(Loop *loop, const Endpoint *endpoint, Problem *problem)
{
    if (!prepare(endpoint->fd, problem))
        return NULL;
    Listener *listener = calloc(1, sizeof *listener);
    if (listener == NULL || connections_in(loop) == NULL) {
        problem_no_memory(problem);
        free(listener);
        return NULL;
    }
    listener->loop = loop;
    listener->endpoint = endpoint;
    listener->watch = (Watch){.fd = endpoint->fd, .ready = accept_some};
    listener->pause.expired = resume_accepting;
    listener->spare = open_spare();
    listener->watched = true; /* Set before the loop's thread can check it. */
    if (!loop_watch(loop, &listener->watch, EPOLLIN | EPOLLEXCLUSIVE)) {
        listener->watched = false;
        problem_set(problem, PROBLEM_INTERNAL, "cannot watch descriptor %d: %s", endpoint->fd, strerror(errno));
        listener_close(listener);
        return NULL;
    }
    return listener;
}

void listener_close(Listener *listener)
{
    if (listener->watched)
        loop_unwatch(listener->loop, &listener->watch);
    loop_clear_timer(listener->loop, &listener->pause);
    if (listener->spare >= 0)
        close(listener->spare);
    free(listener);
}
