#define _GNU_SOURCE
#include "lane/packet.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

enum { SENDING = MSG_NOSIGNAL | MSG_DONTWAIT };

bool packet_send(int fd, const void *data, size_t size, int descriptor)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } rights = {0};
    struct iovec part = {.iov_base = (void *)data, .iov_len = size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (descriptor >= 0) {
        message.msg_control = &rights;
        message.msg_controllen = sizeof rights.room;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    }
    ssize_t sent;
    do
        sent = descriptor < 0 ? send(fd, data, size, SENDING) : sendmsg(fd, &message, SENDING);
    while (sent < 0 && errno == EINTR);
    return sent >= 0;
}
