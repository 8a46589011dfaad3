#define _GNU_SOURCE
#include "handover/handover.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MAX_ENDPOINTS = 256 };

/* ── giving ───────────────────────────────────────────────────────────────────────────────────────────── */

/* Set before any loop reads it. */
static struct {
    const HandoverEndpoints *endpoints;
    int folder; /* descriptor of the directory; 0 if there is no successor */
    /* refers to the directory's descriptor, because the path may be too long for an address */
    struct sockaddr_un address;
} successor;

bool handover_begin(const HandoverEndpoints *endpoints, const char *path, Problem *problem)
{
    const char *name = path ? strrchr(path, '/') : NULL;
    if (path == NULL)
        return true;
    char *folder = name ? strndup(path, (size_t)(name - path + 1)) : NULL;
    int fd = folder ? open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
    free(folder);
    if (fd < 0)
        return problem_set(problem, PROBLEM_INVALID, "the directory of '%s' does not exist", path);
    struct sockaddr_un *address = &successor.address;
    address->sun_family = AF_UNIX;
    int size = snprintf(address->sun_path, sizeof address->sun_path, "/proc/self/fd/%d%s", fd, name);
    if (size < 0 || (size_t)size >= sizeof address->sun_path) {
        close(fd);
        return problem_set(problem, PROBLEM_INVALID, "the file name of '%s' is too long", path);
    }
    if (successor.folder) /* Of an earlier process that did not take over. */
        close(successor.folder);
    successor.folder = fd;
    successor.endpoints = endpoints;
    return true;
}

static bool send_descriptor(int to, unsigned char word, int fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } control = {0};
    struct iovec part = {&word, 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    return sendmsg(to, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

/* Take over one connection. Each descriptor comes on its own connection, so the successor's loops share them like
 * accepted ones.
 */
static bool take(void *user, const Endpoint *endpoint, int fd)
{
    (void)user;
    size_t index = (size_t)(endpoint - successor.endpoints->all);
    int to = index < successor.endpoints->count && index < MAX_ENDPOINTS
        ? socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)
        : -1;
    if (to < 0)
        return false;
    bool given = connect(to, (struct sockaddr *)&successor.address, sizeof successor.address) == 0 &&
        send_descriptor(to, (unsigned char)index, fd);
    close(to);
    return given;
}

bool handover_is_possible(const Connection *connection)
{
    return successor.endpoints && !connection_is_tls(connection);
}

bool handover_give(Connection *connection)
{
    return handover_is_possible(connection) && connection_hand_over(connection, take, NULL);
}

/* ── taking over ──────────────────────────────────────────────────────────────────────────────────────── */

static bool is_client(const Endpoint *endpoint, int fd)
{
    int type = 0, listens = 0;
    socklen_t size = sizeof type;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM &&
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && !listens && !endpoint->is_admin &&
        endpoint->tls == NULL;
}

static void opened(Connection *giver)
{
    connection_set_deadline(giver, connection_endpoint(giver)->limits->header_ms);
}

static void readable(Connection *giver)
{
    const HandoverEndpoints *endpoints = connection_endpoint(giver)->service;
    unsigned char index;
    int fd;
    ssize_t count = connection_read_descriptor(giver, &index, &fd);
    if (count == 0)
        return;
    const Endpoint *endpoint = count == 1 && fd >= 0 && index < endpoints->count ? &endpoints->all[index] : NULL;
    if (endpoint && is_client(endpoint, fd)) {
        connection_adopt(connection_loop(giver), endpoint, fd);
    } else if (fd >= 0) {
        log_warning("cannot take over a connection that is not a client's");
        close(fd);
    }
    connection_abort(giver);
}

static void timed_out(Connection *giver)
{
    connection_abort(giver);
}

static void do_nothing(Connection *giver)
{
    (void)giver;
}

const Protocol handover_protocol = {
    .name = "handover",
    .alpn = "",
    .opened = opened,
    .readable = readable,
    .writable = do_nothing,
    .timed_out = timed_out,
    .drain = do_nothing,
    .closed = do_nothing,
};
