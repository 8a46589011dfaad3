/* A packet of a SOCK_SEQPACKET connection, optionally with a descriptor. */
#ifndef PYTRITON_BACKEND_LANE_PACKET_H
#define PYTRITON_BACKEND_LANE_PACKET_H

#include <stdbool.h>
#include <stddef.h>

/* Send a packet without waiting for room. A `descriptor` (-1: none) stays open here. Returns false with errno. */
bool packet_send(int fd, const void *data, size_t size, int descriptor);

#endif
