/* Addresses of connections, and the number of connections from each. */
#ifndef PYTRITON_FRONTEND_NET_ADDRESSES_H
#define PYTRITON_FRONTEND_NET_ADDRESSES_H

#include "common/slice.h"

#include <sys/socket.h>

/* An address. All zeros for a unix socket. */
typedef struct {
    uint8_t bytes[16]; /* IPv6, or IPv4 as an IPv4-mapped address */
    uint16_t port;
    bool is_ip;
} Address;

Address address_from(const struct sockaddr_storage *from);
/* Write an address such as "127.0.0.1:80", "[::1]:80" or "unix:", if there is room for it and a NUL. */
void address_write(const Address *address, char *text, size_t room);
/* Count a connection from an address. Returns false if there are already `most`. Any thread. */
bool addresses_add(const Address *address, uint64_t most);
/* Stop counting a connection. Any thread. */
void addresses_remove(const Address *address);

#endif
