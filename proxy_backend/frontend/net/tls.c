#define _GNU_SOURCE
#include "net/tls.h"
#include "net/openssl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

OpenSsl openssl;

struct Tls {
    SslContext *context;
    unsigned char protocol[32]; /* in the format of ALPN, after its length */
};

/* Look up a function. Returns NULL with a problem if it is missing. */
static void *look_up(void *library, const char *name, const char *path, Problem *problem)
{
    void *function = library ? dlsym(library, name) : NULL;
    if (function == NULL && problem->kind == PROBLEM_NONE)
        problem_set(problem, PROBLEM_UNSUPPORTED, "TLS needs OpenSSL 3: %s has no %s", path, name);
    return function;
}

static void *open_library(const char *path, Problem *problem)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        problem_set(problem, PROBLEM_UNSUPPORTED, "TLS needs OpenSSL 3: %s", dlerror());
    return library;
}

bool tls_load(const char *crypto, const char *ssl, Problem *problem)
{
    if (openssl.OPENSSL_init_ssl)
        return true;
    OpenSsl table = {0};
    void *library = open_library(crypto, problem); /* Neither library is unloaded. */
    if (library == NULL)
        return false;
#define OPENSSL_FIND(result, name, arguments) table.name = (result(*) arguments)look_up(library, #name, path, problem);
    const char *path = crypto;
    OPENSSL_CRYPTO(OPENSSL_FIND)
    path = ssl;
    library = open_library(ssl, problem);
    if (library == NULL)
        return false;
    OPENSSL_SSL(OPENSSL_FIND)
#undef OPENSSL_FIND
    if (problem->kind != PROBLEM_NONE)
        return false;
    /* OpenSSL's cleanup at exit would not wait for threads that still use it. */
    if (table.OPENSSL_init_ssl(SSL_NO_ATEXIT, NULL) != 1)
        return problem_set(problem, PROBLEM_UNSUPPORTED, "OpenSSL cannot be initialized: %s", ssl);
    openssl = table;
    return true;
}

bool tls_failed(Problem *problem, const char *what)
{
    char text[256] = "no reason was given";
    unsigned long error = openssl.ERR_get_error();
    if (error)
        openssl.ERR_error_string_n(error, text, sizeof text);
    openssl.ERR_clear_error();
    return problem_set(problem, PROBLEM_INVALID, "TLS: %s: %s", what, text);
}

static bool fail_with(Problem *problem, const char *what, const char *file)
{
    char *text = NULL;
    if (asprintf(&text, "%s %s", what, file) < 0)
        return problem_no_memory(problem);
    tls_failed(problem, text);
    free(text);
    return false;
}

/* Refuse keys that need a password, because nobody can be asked for it. */
static int no_password(char *password, int room, int writing, void *argument)
{
    (void)password;
    (void)room;
    (void)writing;
    (void)argument;
    return 0;
}

/* Refuse a client that offers protocols other than this one, as RFC 7301 requires. Accept a client that offers none. */
static int choose(Ssl *ssl, const unsigned char **chosen, unsigned char *chosen_size, const unsigned char *offered,
    unsigned offered_size, void *argument)
{
    const Tls *tls = argument;
    (void)ssl;
    for (unsigned at = 0; at < offered_size; at += 1u + offered[at]) {
        if (offered[at] == tls->protocol[0] && at + 1u + offered[at] <= offered_size &&
            memcmp(offered + at, tls->protocol, 1u + tls->protocol[0]) == 0) {
            *chosen = tls->protocol + 1;
            *chosen_size = tls->protocol[0];
            return SSL_CHOSEN;
        }
    }
    return SSL_REFUSED;
}

static bool set_clients(SslContext *context, const TlsFiles *files, Problem *problem)
{
    static const unsigned char id[] = "pytriton-frontend";
    if (files->root) {
        void *names = openssl.SSL_load_client_CA_file(files->root);
        if (names == NULL || openssl.SSL_CTX_load_verify_locations(context, files->root, NULL) != 1)
            return fail_with(problem, "the authorities' certificates cannot be read from", files->root);
        openssl.SSL_CTX_set_client_CA_list(context, names);
    } else if (openssl.SSL_CTX_set_default_verify_paths(context) != 1) {
        return tls_failed(problem, "the system's authorities cannot be read");
    }
    openssl.SSL_CTX_set_verify(context, SSL_VERIFY_CLIENT, NULL);
    if (openssl.SSL_CTX_set_session_id_context(context, id, sizeof id) != 1)
        return tls_failed(problem, "the session id cannot be set");
    return true;
}

/* The ciphers of TLS 1.2 with forward secrecy and authenticated encryption. TLS 1.3 has only such ones. */
#define CIPHERS "ECDHE+AESGCM:ECDHE+CHACHA20"

static bool configure(Tls *tls, const TlsFiles *files, Problem *problem)
{
    SslContext *context = tls->context;
    openssl.SSL_CTX_ctrl(context, SSL_SET_LEAST_VERSION, SSL_TLS_1_2, NULL);
    openssl.SSL_CTX_ctrl(
        context, SSL_SET_MODE, SSL_MODE_PARTIAL_WRITE | SSL_MODE_MOVING_BUFFER | SSL_MODE_RELEASE_BUFFERS, NULL);
    openssl.SSL_CTX_ctrl(context, SSL_SET_CACHE_MODE, 0, NULL); /* Clients keep their sessions in tickets. */
    openssl.SSL_CTX_set_options(
        context, SSL_IGNORE_UNEXPECTED_END | SSL_NO_COMPRESSION | SSL_SERVER_PREFERENCE | SSL_NO_RENEGOTIATION);
    if (openssl.SSL_CTX_set_cipher_list(context, CIPHERS) != 1)
        return tls_failed(problem, "no cipher is available");
    openssl.SSL_CTX_set_default_passwd_cb(context, no_password);
    openssl.SSL_CTX_set_alpn_select_cb(context, choose, tls);
    if (openssl.SSL_CTX_use_certificate_chain_file(context, files->certificate) != 1)
        return fail_with(problem, "the certificate cannot be read from", files->certificate);
    if (openssl.SSL_CTX_use_PrivateKey_file(context, files->key, SSL_FILE_PEM) != 1)
        return fail_with(problem, "the key cannot be read from", files->key);
    if (openssl.SSL_CTX_check_private_key(context) != 1)
        return fail_with(problem, "the key does not match the certificate in", files->certificate);
    return !files->mutual || set_clients(context, files, problem);
}

Tls *tls_new(const TlsFiles *files, const char *protocol, Problem *problem)
{
    Tls *tls = calloc(1, sizeof *tls);
    size_t size = strlen(protocol);
    if (tls == NULL || size >= sizeof tls->protocol) {
        problem_no_memory(problem);
        free(tls);
        return NULL;
    }
    tls->protocol[0] = (unsigned char)size;
    memcpy(tls->protocol + 1, protocol, size);
    openssl.ERR_clear_error();
    tls->context = openssl.SSL_CTX_new(openssl.TLS_server_method());
    if (tls->context == NULL)
        tls_failed(problem, "no context can be created");
    if (tls->context && configure(tls, files, problem))
        return tls;
    tls_free(tls);
    return NULL;
}

void tls_free(Tls *tls)
{
    if (tls && tls->context)
        openssl.SSL_CTX_free(tls->context);
    free(tls);
}

Ssl *tls_session(const Tls *tls, int fd)
{
    Ssl *ssl = openssl.SSL_new(tls->context);
    if (ssl && openssl.SSL_set_fd(ssl, fd) == 1)
        return ssl;
    openssl.ERR_clear_error();
    if (ssl)
        openssl.SSL_free(ssl);
    return NULL;
}
