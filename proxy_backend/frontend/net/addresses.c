#include "net/addresses.h"
#include "base/name_table.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static NameTable counts; /* by address: the number of connections, stored as a pointer */

static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

Address address_from(const struct sockaddr_storage *from)
{
    Address address = {0};
    if (from->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)from;
        memcpy(address.bytes, mapped, sizeof mapped);
        memcpy(address.bytes + sizeof mapped, &in->sin_addr, 4);
        address.port = ntohs(in->sin_port);
        address.is_ip = true;
    } else if (from->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)from;
        memcpy(address.bytes, &in->sin6_addr, sizeof address.bytes);
        address.port = ntohs(in->sin6_port);
        address.is_ip = true;
    }
    return address;
}

static bool is_v4(const Address *address)
{
    return memcmp(address->bytes, mapped, sizeof mapped) == 0;
}

void address_write(const Address *address, char *text, size_t room)
{
    char host[INET6_ADDRSTRLEN] = "";
    if (!address->is_ip)
        snprintf(text, room, "unix:");
    else if (is_v4(address))
        snprintf(text, room, "%s:%d", inet_ntop(AF_INET, address->bytes + 12, host, sizeof host), address->port);
    else
        snprintf(text, room, "[%s]:%d", inet_ntop(AF_INET6, address->bytes, host, sizeof host), address->port);
}

/* Returns the key of an address in `counts`. The owner of an IPv6 address also has the other 2^64 addresses of its
 * /64.
 */
static Slice key_of(const Address *address)
{
    return (Slice){(const char *)address->bytes, is_v4(address) ? 16 : 8};
}

bool addresses_add(const Address *address, uint64_t most)
{
    if (!address->is_ip)
        return true;
    pthread_mutex_lock(&lock);
    uintptr_t count = (uintptr_t)name_table_get(&counts, key_of(address));
    bool added = count < most && name_table_put(&counts, key_of(address), (void *)(count + 1));
    pthread_mutex_unlock(&lock);
    return added;
}

void addresses_remove(const Address *address)
{
    if (!address->is_ip)
        return;
    pthread_mutex_lock(&lock);
    uintptr_t count = (uintptr_t)name_table_get(&counts, key_of(address));
    if (count > 1)
        name_table_put(&counts, key_of(address), (void *)(count - 1)); /* Replacing a value needs no memory. */
    else
        name_table_remove(&counts, key_of(address));
    pthread_mutex_unlock(&lock);
}
