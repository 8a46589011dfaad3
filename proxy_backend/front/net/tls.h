/* TLS by OpenSSL 3, which is loaded when it is needed. */
#ifndef PYTRITON_FRONT_TLS_H
#define PYTRITON_FRONT_TLS_H

#include "base/problem.h"

/* Certificates and what goes with them, for all connections of a listener. Its connections refer to it. */
typedef struct Tls Tls;

typedef struct {
    const char *certificate; /* file (PEM) of the server's certificate, and of those that lead to an authority's */
    const char *key;         /* file (PEM) */
    const char *root; /* file (PEM) of the authorities whose certificates clients may show; NULL: the system's */
    bool mutual; /* clients have to show a certificate */
} TlsFiles;

/* Load libcrypto and libssl from there, once in a process. */
bool tls_load(const char *crypto, const char *ssl, Problem *problem);
/* `protocol`: the only one that is spoken there, as ALPN names it ("h2", "http/1.1"). NULL: the problem says what is wrong with which file. */
Tls *tls_new(const TlsFiles *files, const char *protocol, Problem *problem);
void tls_free(Tls *tls);

/* For stream.c: OpenSSL's session on a socket; NULL: there is no memory. */
struct ssl_st *tls_session(const Tls *tls, int fd);
/* Say what OpenSSL has failed at, and forget it. Returns false. */
bool tls_failed(Problem *problem, const char *what);

#endif
