/* Requests to typed functions, and pages (route_table.h). */
#ifndef PYTRITON_FRONTEND_HTTP_TYPED_H
#define PYTRITON_FRONTEND_HTTP_TYPED_H

#include "http/route_table.h"
#include "http/routes.h"

/* Returns whether the request comes from a page of an origin that may send requests; the response then says so. */
bool typed_allows_origin(HttpRequest *request, const Routes *routes);
/* Write an error as problem details (RFC 9457), and return its status. What is wrong inside of a model is not for its
 * clients.
 */
int typed_put_problem(Buffer *text, const Problem *problem);
/* Returns the id in " [request id: 7]" at the end of an error text; `start` NULL: none. It is in the model's log, too. */
Slice typed_request_id(const char *text);
/* Answer a request. */
void typed_run(HttpRequest *request, const Route *route, bool is_allowed_origin);

#endif
