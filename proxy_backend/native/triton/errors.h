/* tritonserver's errors and log. */
#ifndef PYTRITON_ERRORS_H
#define PYTRITON_ERRORS_H

#include "triton/api.h"

/* The names of error codes, by TRITONSERVER_Error_Code. */
enum { CODE_COUNT = 8 };
extern const char *const codes[CODE_COUNT];
/* Returns an error's text for free(), NULL if it has none; frees the error. */
char *text_of(TRITONSERVER_Error *error);
/* Free an error. Returns whether there was one. */
bool failed(TRITONSERVER_Error *error);
void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
