/* Written by scripts/generate from pytriton/_protocol/http_statuses.py: do not edit. */
/* clang-format off */
#ifndef PYTRITON_FRONTEND_HTTP_STATUSES_H
#define PYTRITON_FRONTEND_HTTP_STATUSES_H

#define HTTP_STATUSES(X) \
    X(100, "Continue") \
    X(200, "OK") \
    X(204, "No Content") \
    X(400, "Bad Request") \
    X(401, "Unauthorized") \
    X(402, "Payment Required") \
    X(403, "Forbidden") \
    X(404, "Not Found") \
    X(405, "Method Not Allowed") \
    X(406, "Not Acceptable") \
    X(407, "Proxy Authentication Required") \
    X(408, "Request Timeout") \
    X(409, "Conflict") \
    X(410, "Gone") \
    X(411, "Length Required") \
    X(412, "Precondition Failed") \
    X(413, "Content Too Large") \
    X(414, "URI Too Long") \
    X(415, "Unsupported Media Type") \
    X(416, "Range Not Satisfiable") \
    X(417, "Expectation Failed") \
    X(421, "Misdirected Request") \
    X(422, "Unprocessable Content") \
    X(423, "Locked") \
    X(424, "Failed Dependency") \
    X(425, "Too Early") \
    X(426, "Upgrade Required") \
    X(428, "Precondition Required") \
    X(429, "Too Many Requests") \
    X(431, "Request Header Fields Too Large") \
    X(451, "Unavailable For Legal Reasons") \
    X(499, "Client Closed Request") \
    X(500, "Internal Server Error") \
    X(501, "Not Implemented") \
    X(502, "Bad Gateway") \
    X(503, "Service Unavailable") \
    X(504, "Gateway Timeout") \
    X(505, "HTTP Version Not Supported") \
    X(506, "Variant Also Negotiates") \
    X(507, "Insufficient Storage") \
    X(508, "Loop Detected") \
    X(511, "Network Authentication Required")

#endif
