/* Paths beyond Triton's: the routes of models that are typed functions, and pages. The dispatcher sends the whole table
 * whenever it changes (POST /admin/routes):
 *
 *     {"routes": [{"path": "/predict", "model": "predict", "type": "application/json", "streams": false, "put": false}, ...],
 *      "pages": [{"path": "/docs", "type": "text/html", "file": "/path/of/page.html", "policy": "default-src 'none'"}, ...],
 *      "origins": ["https://example.com", ...], "log_errors": false}
 *
 * The table is replaced as a whole; requests in progress keep what they found. Any thread may call any of these.
 */
#ifndef PYTRITON_FRONTEND_HTTP_ROUTE_TABLE_H
#define PYTRITON_FRONTEND_HTTP_ROUTE_TABLE_H

#include "http1/target.h"

#include <stdint.h>

/* What becomes a header of responses is at most this long; the same limit is in pytriton/_protocol/routes.py. */
enum { ROUTE_TYPE_SIZE = 127, ROUTE_POLICY_SIZE = 600 };

typedef struct RouteTable RouteTable;
typedef struct Routes Routes;

/* What is served at a path: a model's route, or a page. */
typedef struct {
    const char *path, *type; /* `type`: of the response */
    const char *model; /* NULL: a page */
    bool streams; /* the model responds with events */
    bool takes_put; /* PUT does the same as POST */
    Slice content; /* of the page */
    const char *policy; /* the page's Content-Security-Policy; NULL: none */
} Route;

/* NULL without memory. */
RouteTable *route_table_new(void);
void route_table_free(RouteTable *table);
/* Replace all routes by those of a JSON document. Returns false with a problem; then nothing has changed. */
bool route_table_replace(RouteTable *table, Slice document, Problem *problem);

/* Find what is served at a path. Returns NULL if it is nothing; otherwise a part of `*routes`, to be released when it is
 * no longer used.
 */
const Route *route_table_find(RouteTable *table, const Target *target, Routes **routes);
void routes_release(Routes *routes);
/* Returns whether anything is served. */
bool route_table_has_routes(RouteTable *table);
/* Returns whether error responses are logged. */
bool route_table_logs_errors(RouteTable *table);
/* Returns whether pages of another origin may send requests to routes. */
bool routes_allow_origin(const Routes *routes, Slice origin);

#endif
