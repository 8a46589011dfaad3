/* A packet of a SOCK_SEQPACKET connection, with a descriptor beside it or without. */
#ifndef PYTRITON_PACKET_H
#define PYTRITON_PACKET_H

#include <stdbool.h>
#include <stddef.h>

/* Send a packet without waiting for room. A `descriptor` (-1: none) stays open here. False: see errno. */
bool packet_send(int fd, const void *data, size_t size, int descriptor);

#endif
