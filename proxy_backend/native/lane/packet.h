/* A packet of a SOCK_SEQPACKET connection, with a descriptor beside it or without. */
#ifndef PYTRITON_PACKET_H
#define PYTRITON_PACKET_H

#include <stdbool.h>
#include <stddef.h>

/* Send it without waiting for room; `descriptor` -1: none goes with it, else it stays open here. False: see errno. */
bool packet_send(int fd, const void *data, size_t size, int descriptor);

#endif
