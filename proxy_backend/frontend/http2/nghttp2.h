/* The part of nghttp2 (https://nghttp2.org/documentation/, version 1.43 and later) that is used, declared from its
 * documentation. The library is loaded when it is first needed.
 */
#ifndef PYTRITON_FRONTEND_HTTP2_NGHTTP2_H
#define PYTRITON_FRONTEND_HTTP2_NGHTTP2_H

#include "base/problem.h"

#include <sys/types.h>

typedef struct nghttp2_session nghttp2_session;
typedef struct nghttp2_session_callbacks nghttp2_session_callbacks;
typedef struct nghttp2_option nghttp2_option;

typedef struct {
    uint8_t *name, *value;
    size_t namelen, valuelen;
    uint8_t flags;
} nghttp2_nv;

typedef struct {
    int32_t settings_id;
    uint32_t value;
} nghttp2_settings_entry;

typedef struct {
    size_t length;
    int32_t stream_id;
    uint8_t type, flags, reserved;
} nghttp2_frame_hd;

/* The beginning that all frames have in common. The category of a HEADERS frame comes later. */
typedef union {
    nghttp2_frame_hd hd;
    struct {
        nghttp2_frame_hd hd;
        size_t padlen;
        struct {
            int32_t stream_id, weight;
            uint8_t exclusive;
        } pri_spec;
        nghttp2_nv *nva;
        size_t nvlen;
        int cat;
    } headers;
} nghttp2_frame;

typedef union {
    int fd;
    void *ptr;
} nghttp2_data_source;

typedef struct {
    nghttp2_data_source source;
    ssize_t (*read_callback)(nghttp2_session *session, int32_t stream, uint8_t *buffer, size_t size, uint32_t *flags,
        nghttp2_data_source *source, void *user);
} nghttp2_data_provider;

enum { NGHTTP2_DATA, NGHTTP2_HEADERS, NGHTTP2_RST_STREAM = 3, NGHTTP2_SETTINGS, NGHTTP2_CONTINUATION = 9 };
enum { NGHTTP2_HCAT_REQUEST = 0 };
enum { NGHTTP2_FLAG_END_STREAM = 1 };
enum {
    NGHTTP2_NO_ERROR,
    NGHTTP2_PROTOCOL_ERROR,
    NGHTTP2_INTERNAL_ERROR,
    NGHTTP2_REFUSED_STREAM = 7,
    NGHTTP2_CANCEL,
    NGHTTP2_ENHANCE_YOUR_CALM = 11
};
enum {
    NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS = 3,
    NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE,
    NGHTTP2_SETTINGS_MAX_FRAME_SIZE,
    NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE,
};
enum { NGHTTP2_DATA_FLAG_EOF = 1, NGHTTP2_DATA_FLAG_NO_END_STREAM = 2, NGHTTP2_DATA_FLAG_NO_COPY = 4 };
enum {
    NGHTTP2_ERR_WOULDBLOCK = -504,
    NGHTTP2_ERR_DEFERRED = -508,
    NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE = -521,
    NGHTTP2_ERR_NOMEM = -901,
    NGHTTP2_ERR_CALLBACK_FAILURE = -902,
};

/* clang-format off */
#define NGHTTP2_FUNCTIONS(X) \
    X(int, session_callbacks_new, (nghttp2_session_callbacks **callbacks)) \
    X(void, session_callbacks_del, (nghttp2_session_callbacks *callbacks)) \
    X(void, session_callbacks_set_send_callback, (nghttp2_session_callbacks *callbacks, \
        ssize_t (*send)(nghttp2_session *, const uint8_t *data, size_t size, int flags, void *user))) \
    X(void, session_callbacks_set_send_data_callback, (nghttp2_session_callbacks *callbacks, \
        int (*send)(nghttp2_session *, nghttp2_frame *frame, const uint8_t *head, size_t size, nghttp2_data_source *, void *user))) \
    X(void, session_callbacks_set_on_begin_headers_callback, (nghttp2_session_callbacks *callbacks, \
        int (*begin)(nghttp2_session *, const nghttp2_frame *frame, void *user))) \
    X(void, session_callbacks_set_on_header_callback, (nghttp2_session_callbacks *callbacks, \
        int (*header)(nghttp2_session *, const nghttp2_frame *frame, const uint8_t *name, size_t name_size, \
            const uint8_t *value, size_t value_size, uint8_t flags, void *user))) \
    X(void, session_callbacks_set_on_data_chunk_recv_callback, (nghttp2_session_callbacks *callbacks, \
        int (*chunk)(nghttp2_session *, uint8_t flags, int32_t stream, const uint8_t *data, size_t size, void *user))) \
    X(void, session_callbacks_set_on_begin_frame_callback, (nghttp2_session_callbacks *callbacks, \
        int (*begin)(nghttp2_session *, const nghttp2_frame_hd *head, void *user))) \
    X(void, session_callbacks_set_on_frame_recv_callback, (nghttp2_session_callbacks *callbacks, \
        int (*received)(nghttp2_session *, const nghttp2_frame *frame, void *user))) \
    X(void, session_callbacks_set_on_frame_send_callback, (nghttp2_session_callbacks *callbacks, \
        int (*sent)(nghttp2_session *, const nghttp2_frame *frame, void *user))) \
    X(void, session_callbacks_set_on_stream_close_callback, (nghttp2_session_callbacks *callbacks, \
        int (*closed)(nghttp2_session *, int32_t stream, uint32_t error, void *user))) \
    X(int, option_new, (nghttp2_option **option)) \
    X(void, option_del, (nghttp2_option *option)) \
    X(void, option_set_no_auto_window_update, (nghttp2_option *option, int value)) \
    X(int, session_server_new2, (nghttp2_session **session, const nghttp2_session_callbacks *callbacks, void *user, const nghttp2_option *option)) \
    X(void, session_del, (nghttp2_session *session)) \
    X(ssize_t, session_mem_recv, (nghttp2_session *session, const uint8_t *data, size_t size)) \
    X(int, session_send, (nghttp2_session *session)) \
    X(int, session_want_read, (nghttp2_session *session)) \
    X(size_t, session_get_outbound_queue_size, (nghttp2_session *session)) \
    X(int, session_want_write, (nghttp2_session *session)) \
    X(void *, session_get_stream_user_data, (nghttp2_session *session, int32_t stream)) \
    X(int, session_set_stream_user_data, (nghttp2_session *session, int32_t stream, void *data)) \
    X(int, session_set_local_window_size, (nghttp2_session *session, uint8_t flags, int32_t stream, int32_t size)) \
    X(int, session_consume_connection, (nghttp2_session *session, size_t size)) \
    X(int, session_consume_stream, (nghttp2_session *session, int32_t stream, size_t size)) \
    X(int, session_resume_data, (nghttp2_session *session, int32_t stream)) \
    X(int, session_terminate_session, (nghttp2_session *session, uint32_t error)) \
    X(int32_t, session_get_last_proc_stream_id, (nghttp2_session *session)) \
    X(int, submit_settings, (nghttp2_session *session, uint8_t flags, const nghttp2_settings_entry *entries, size_t count)) \
    X(int, submit_response, (nghttp2_session *session, int32_t stream, const nghttp2_nv *headers, size_t count, const nghttp2_data_provider *data)) \
    X(int, submit_trailer, (nghttp2_session *session, int32_t stream, const nghttp2_nv *headers, size_t count)) \
    X(int, submit_rst_stream, (nghttp2_session *session, uint8_t flags, int32_t stream, uint32_t error)) \
    X(int, submit_goaway, (nghttp2_session *session, uint8_t flags, int32_t last, uint32_t error, const uint8_t *debug, size_t size)) \
    X(int, submit_shutdown_notice, (nghttp2_session *session)) \
    X(const char *, strerror, (int error))
/* clang-format on */

#define NGHTTP2_POINTER(type, name, arguments) type(*name) arguments;
typedef struct {
    NGHTTP2_FUNCTIONS(NGHTTP2_POINTER)
} Nghttp2;
#undef NGHTTP2_POINTER

extern Nghttp2 nghttp2;

/* Exists since version 1.57 and in patched older ones. NULL if the library has neither the function nor the limit. */
extern void (*nghttp2_option_set_stream_reset_rate_limit)(nghttp2_option *option, uint64_t burst, uint64_t rate);

/* Load the library, once per process. Returns false with a problem if it is missing or lacks a function. */
bool nghttp2_load(const char *path, Problem *problem);

#endif
