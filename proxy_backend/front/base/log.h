/* The front's own log lines: on standard error in the form of Triton's, until somebody else writes them. */
#ifndef PYTRITON_FRONT_LOG_H
#define PYTRITON_FRONT_LOG_H

#include <stdbool.h>

typedef enum { LOG_INFO, LOG_WARNING, LOG_ERROR, LOG_VERBOSE } LogLevel;

/* One line, in one write. Line breaks and other control characters in it are replaced: what clients sent may be quoted. */
__attribute__((format(printf, 4, 5))) void log_write(
    LogLevel level, const char *file, int line, const char *format, ...);
/* Have somebody else write lines, who knows where to and in which form; NULL: nobody. */
void log_through(void (*write)(LogLevel level, const char *file, int line, const char *text));
/* Whether lines of that level are written: all but LOG_VERBOSE are, until it is said. */
void log_enable(LogLevel level, bool enabled);
bool log_is_enabled(LogLevel level);

#define log_at(level, ...) (log_is_enabled(level) ? log_write(level, __FILE__, __LINE__, __VA_ARGS__) : (void)0)
#define log_info(...) log_at(LOG_INFO, __VA_ARGS__)
#define log_warning(...) log_at(LOG_WARNING, __VA_ARGS__)
#define log_error(...) log_at(LOG_ERROR, __VA_ARGS__)
#define log_verbose(...) log_at(LOG_VERBOSE, __VA_ARGS__)

#endif
