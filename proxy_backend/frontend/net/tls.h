/* TLS with OpenSSL 3, which is loaded when it is first needed. */
#ifndef PYTRITON_FRONTEND_NET_TLS_H
#define PYTRITON_FRONTEND_NET_TLS_H

#include "base/problem.h"

/* Certificates and settings for the connections of a listener. Must outlive the connections. */
typedef struct Tls Tls;

typedef struct {
    const char *certificate; /* PEM file with the server's certificate and its chain */
    const char *key;         /* PEM file with the private key */
    const char *root; /* PEM file with the authorities that sign client certificates; NULL for those of the system */
    bool mutual; /* clients must present a certificate */
} TlsFiles;

/* Load libcrypto and libssl from these paths, once per process. */
bool tls_load(const char *crypto, const char *ssl, Problem *problem);
/* Load the certificates. `protocol` is the ALPN name of the only protocol that is accepted ("h2" or "http/1.1").
 * Returns NULL with a problem that names the file.
 */
Tls *tls_new(const TlsFiles *files, const char *protocol, Problem *problem);
void tls_free(Tls *tls);

/* Create an OpenSSL session on a socket. Returns NULL without memory. For stream.c. */
struct ssl_st *tls_session(const Tls *tls, int fd);
/* Set a problem from OpenSSL's error, and clear the error. Returns false. */
bool tls_failed(Problem *problem, const char *what);

#endif
