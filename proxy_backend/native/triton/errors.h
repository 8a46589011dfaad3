/* Errors of tritonserver's, and its log. */
#ifndef PYTRITON_ERRORS_H
#define PYTRITON_ERRORS_H

#include "triton/api.h"

/* The names of error codes, by TRITONSERVER_Error_Code. */
enum { CODE_COUNT = 8 };
extern const char *const codes[CODE_COUNT];
/* An error's text for free(), NULL without one; the error is freed. */
char *text_of(TRITONSERVER_Error *error);
/* Free an error of tritonserver's; true: there was one. */
bool failed(TRITONSERVER_Error *error);
void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
