#define _GNU_SOURCE
#include "http1/browsers.h"

#include <unistd.h>

/* Domains in which nobody can register a name on the internet. */
static const char *const private_domains[] = {".localhost", ".local", ".internal", ".svc", ".home.arpa"};

static bool is_safe(HttpMethod method)
{
    return method == HTTP_GET || method == HTTP_HEAD || method == HTTP_OPTIONS;
}

bool browser_is_cross_site(const HttpHead *head)
{
    if (is_safe(head->method))
        return false;
    Slice site = http_header(head, "sec-fetch-site");
    if (site.start)
        return !slice_is(site, "none") && !slice_is(site, "same-origin");
    Slice origin = http_header(head, "origin");
    if (origin.start == NULL)
        return false;
    /* Without TLS, browsers send only this header, unless the server is on localhost. */
    Slice host = http_header(head, "host");
    const char *mark = memmem(origin.start, origin.size, "://", 3);
    Slice name = mark ? slice_after(origin, (size_t)(mark - origin.start) + 3) : SLICE("");
    return name.size != host.size || host.size == 0 || strncasecmp(name.start, host.start, name.size) != 0;
}

static bool ends_with(Slice name, const char *end)
{
    size_t size = strlen(end);
    return name.size >= size && strncasecmp(name.start + name.size - size, end, size) == 0;
}

static bool is_own_name(Slice name)
{
    char own[256];
    return gethostname(own, sizeof own) == 0 && memchr(own, 0, sizeof own) && slice_is_nocase(name, own);
}

static bool may_be_attackers(Slice name)
{
    size_t dots = 0, others = 0;
    for (size_t i = 0; i < name.size; i++) {
        dots += name.start[i] == '.';
        others += name.start[i] != '.' && (name.start[i] < '0' || name.start[i] > '9');
    }
    if (dots == 0 || others == 0 || name.start[0] == '[')
        return false;
    for (size_t i = 0; i < sizeof private_domains / sizeof *private_domains; i++)
        if (ends_with(name, private_domains[i]))
            return false;
    return !is_own_name(name);
}

bool browser_names_public_host(const HttpHead *head, uint64_t *port)
{
    Slice host = http_header(head, "host"), name = host;
    *port = 0;
    for (size_t i = host.size; i > 0 && host.start[i - 1] != ']'; i--)
        if (host.start[i - 1] == ':') {
            name = (Slice){host.start, i - 1};
            if (!slice_unsigned(slice_after(host, i), port))
                *port = 0;
            break;
        }
    while (name.size && name.start[name.size - 1] == '.')
        name.size--;
    return may_be_attackers(name);
}
