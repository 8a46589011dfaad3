/* Logs the error responses of typed functions, of inferences, and for unknown paths, if the dispatcher wants them
 * (route_table.h): a line such as "error response: 413 POST /predict 0.2 ms [request id: 7]". Most of these requests have
 * not reached a worker, so no access log has them.
 */
#ifndef PYTRITON_FRONTEND_HTTP_ERROR_LOG_H
#define PYTRITON_FRONTEND_HTTP_ERROR_LOG_H

#include "http/request.h"

/* Record which request a call is about, should it get an error. */
void error_log_begin(Call *call, const HttpHead *head);
/* Log the error of a call. Any thread. */
void error_log_write(const Call *call, int status, const Problem *problem);
/* Log the error of a request that has been refused before its call began. */
void error_log_refusal(const HttpService *service, const HttpHead *head, int status);

#endif
