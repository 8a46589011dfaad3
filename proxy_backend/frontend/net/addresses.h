/* The addresses of connections, and how many connections come from each. */
#ifndef PYTRITON_FRONTEND_NET_ADDRESSES_H
#define PYTRITON_FRONTEND_NET_ADDRESSES_H

#include "common/slice.h"

#include <sys/socket.h>

/* All zero: a unix socket. */
typedef struct {
    uint8_t bytes[16]; /* IPv6, or IPv4 mapped into it */
    uint16_t port;
    bool is_ip;
} Address;

Address address_from(const struct sockaddr_storage *from);
/* "127.0.0.1:80", "[::1]:80", "unix:", and NUL, if there is room. */
void address_write(const Address *address, char *text, size_t room);
/* Count a connection from there. Returns false if there are `most` already. Any thread. */
bool addresses_add(const Address *address, uint64_t most);
/* A counted connection has ended. Any thread. */
void addresses_remove(const Address *address);

#endif
