/* The frontend's log. It is written to standard error in Triton's format until another writer is set. */
#ifndef PYTRITON_FRONTEND_BASE_LOG_H
#define PYTRITON_FRONTEND_BASE_LOG_H

#include <stdbool.h>

typedef enum { LOG_INFO, LOG_WARNING, LOG_ERROR, LOG_VERBOSE } LogLevel;

/* Write one line with one system call. Control characters, including line breaks, are replaced, because lines quote
 * clients' input.
 */
__attribute__((format(printf, 4, 5))) void log_write(
    LogLevel level, const char *file, int line, const char *format, ...);
/* Set another writer, which chooses the destination and format. NULL restores standard error. */
void log_through(void (*write)(LogLevel level, const char *file, int line, const char *text));
/* Enable or disable a level. Initially, all but LOG_VERBOSE are enabled. */
void log_enable(LogLevel level, bool enabled);
bool log_is_enabled(LogLevel level);

#define log_at(level, ...) (log_is_enabled(level) ? log_write(level, __FILE__, __LINE__, __VA_ARGS__) : (void)0)
#define log_info(...) log_at(LOG_INFO, __VA_ARGS__)
#define log_warning(...) log_at(LOG_WARNING, __VA_ARGS__)
#define log_error(...) log_at(LOG_ERROR, __VA_ARGS__)
#define log_verbose(...) log_at(LOG_VERBOSE, __VA_ARGS__)

#endif
