/* TLS with OpenSSL 3, which is loaded on demand. */
#ifndef PYTRITON_FRONTEND_NET_TLS_H
#define PYTRITON_FRONTEND_NET_TLS_H

#include "base/problem.h"

/* Certificates and related settings for all connections of a listener, which refer to it. */
typedef struct Tls Tls;

typedef struct {
    const char *certificate; /* file (PEM) with the server's certificate and its chain */
    const char *key;         /* file (PEM) */
    const char *root; /* file (PEM) with the authorities for client certificates; NULL: the system's */
    bool mutual; /* clients must present a certificate */
} TlsFiles;

/* Load libcrypto and libssl from these paths, once per process. */
bool tls_load(const char *crypto, const char *ssl, Problem *problem);
/* `protocol`: the only one accepted, by its ALPN name ("h2", "http/1.1"). NULL: the problem names the file and the
 * error.
 */
Tls *tls_new(const TlsFiles *files, const char *protocol, Problem *problem);
void tls_free(Tls *tls);

/* For stream.c: returns an OpenSSL session on a socket; NULL without memory. */
struct ssl_st *tls_session(const Tls *tls, int fd);
/* Report and clear OpenSSL's error. Returns false. */
bool tls_failed(Problem *problem, const char *what);

#endif
