/* tritonserver's errors and log. */
#ifndef PYTRITON_BACKEND_TRITON_ERRORS_H
#define PYTRITON_BACKEND_TRITON_ERRORS_H

#include "triton/api.h"

/* Names of error codes, by TRITONSERVER_Error_Code. */
enum { ERROR_CODE_COUNT = 8 };
extern const char *const error_code_names[ERROR_CODE_COUNT];
/* Returns the text of an error for free(), or NULL if it has none. Frees the error. */
char *triton_error_text(TRITONSERVER_Error *error);
/* Free an error; NULL is allowed. Returns whether there was one. */
bool triton_error_consume(TRITONSERVER_Error *error);
void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
