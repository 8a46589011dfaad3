/* The functions of OpenSSL 3 that are used, declared from its manual pages, since the build does not need OpenSSL's
 * headers. They can be called after tls_load has returned true.
 */
#ifndef PYTRITON_FRONTEND_NET_OPENSSL_H
#define PYTRITON_FRONTEND_NET_OPENSSL_H

#include "base/problem.h"

typedef struct ssl_ctx_st SslContext;
typedef struct ssl_st Ssl;

typedef int (*SslProtocolChooser)(Ssl *ssl, const unsigned char **chosen, unsigned char *chosen_size,
    const unsigned char *offered, unsigned offered_size, void *argument);
typedef int (*SslPasswordAsker)(char *password, int room, int writing, void *argument);

/* X(result, name, arguments), for libcrypto and then for libssl */
#define OPENSSL_CRYPTO(X)                                                                                              \
    X(unsigned long, ERR_get_error, (void))                                                                            \
    X(void, ERR_error_string_n, (unsigned long error, char *text, size_t size))                                        \
    X(void, ERR_clear_error, (void))

#define OPENSSL_SSL(X)                                                                                                 \
    X(int, OPENSSL_init_ssl, (uint64_t options, const void *settings))                                                 \
    X(const void *, TLS_server_method, (void))                                                                         \
    X(SslContext *, SSL_CTX_new, (const void *method))                                                                 \
    X(void, SSL_CTX_free, (SslContext * context))                                                                      \
    X(long, SSL_CTX_ctrl, (SslContext * context, int command, long number, void *pointer))                             \
    X(uint64_t, SSL_CTX_set_options, (SslContext * context, uint64_t options))                                         \
    X(int, SSL_CTX_set_cipher_list, (SslContext * context, const char *ciphers))                                       \
    X(void, SSL_CTX_set_default_passwd_cb, (SslContext * context, SslPasswordAsker ask))                               \
    X(int, SSL_CTX_use_certificate_chain_file, (SslContext * context, const char *file))                               \
    X(int, SSL_CTX_use_PrivateKey_file, (SslContext * context, const char *file, int kind))                            \
    X(int, SSL_CTX_check_private_key, (const SslContext *context))                                                     \
    X(int, SSL_CTX_load_verify_locations, (SslContext * context, const char *file, const char *folder))                \
    X(int, SSL_CTX_set_default_verify_paths, (SslContext * context))                                                   \
    X(void *, SSL_load_client_CA_file, (const char *file))                                                             \
    X(void, SSL_CTX_set_client_CA_list, (SslContext * context, void *names))                                           \
    X(void, SSL_CTX_set_verify, (SslContext * context, int mode, void *callback))                                      \
    X(int, SSL_CTX_set_session_id_context, (SslContext * context, const unsigned char *id, unsigned size))             \
    X(void, SSL_CTX_set_alpn_select_cb, (SslContext * context, SslProtocolChooser choose, void *argument))             \
    X(Ssl *, SSL_new, (SslContext * context))                                                                          \
    X(void, SSL_free, (Ssl * ssl))                                                                                     \
    X(int, SSL_set_fd, (Ssl * ssl, int fd))                                                                            \
    X(int, SSL_accept, (Ssl * ssl))                                                                                    \
    X(int, SSL_read, (Ssl * ssl, void *to, int size))                                                                  \
    X(int, SSL_write, (Ssl * ssl, const void *from, int size))                                                         \
    X(int, SSL_shutdown, (Ssl * ssl))                                                                                  \
    X(int, SSL_get_error, (const Ssl *ssl, int result))

typedef struct {
#define OPENSSL_MEMBER(result, name, arguments) result(*name) arguments;
    OPENSSL_CRYPTO(OPENSSL_MEMBER)
    OPENSSL_SSL(OPENSSL_MEMBER)
#undef OPENSSL_MEMBER
} OpenSsl;

extern OpenSsl openssl;

/* Constants from openssl/ssl.h. */
enum {
    SSL_WANTS_READ = 2,
    SSL_WANTS_WRITE = 3,
    SSL_ENDED = 6,
    SSL_FILE_PEM = 1,
    SSL_MODE_PARTIAL_WRITE = 1,
    SSL_MODE_MOVING_BUFFER = 2,
    SSL_MODE_RELEASE_BUFFERS = 16,
    SSL_SET_MODE = 33,
    SSL_SET_CACHE_MODE = 44,
    SSL_SET_LEAST_VERSION = 123,
    SSL_TLS_1_2 = 0x0303,
    SSL_VERIFY_CLIENT = 1 | 2, /* request a certificate from the client, and require it */
    SSL_CHOSEN = 0,
    SSL_REFUSED = 2,
    SSL_NOT_CHOSEN = 3,
};

#define SSL_NO_ATEXIT (UINT64_C(1) << 19)
#define SSL_IGNORE_UNEXPECTED_END (UINT64_C(1) << 7)
#define SSL_NO_COMPRESSION (UINT64_C(1) << 17)
#define SSL_SERVER_PREFERENCE (UINT64_C(1) << 22)
#define SSL_NO_RENEGOTIATION (UINT64_C(1) << 30)

#endif
