#include "base/log.h"

#include "common/utf8.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 4096 };

static atomic_uint enabled_levels = 1u << LOG_INFO | 1u << LOG_WARNING | 1u << LOG_ERROR;

void log_enable(LogLevel level, bool enabled)
{
    if (enabled)
        atomic_fetch_or(&enabled_levels, 1u << level);
    else
        atomic_fetch_and(&enabled_levels, ~(1u << level));
}

bool log_is_enabled(LogLevel level)
{
    return (atomic_load_explicit(&enabled_levels, memory_order_relaxed) >> level & 1) != 0;
}

/* Write a header such as "I1122 19:02:16.000123 4711 file.c:12] ". Returns its size. */
static size_t put_header(char *line, size_t room, LogLevel level, const char *file, int number)
{
    struct timeval now;
    struct tm local;
    gettimeofday(&now, NULL);
    localtime_r(&now.tv_sec, &local);
    const char *slash = strrchr(file, '/');
    int size = snprintf(line, room, "%c%02d%02d %02d:%02d:%02d.%06ld %d %s:%d] ", "IWEI"[level], local.tm_mon + 1,
        local.tm_mday, local.tm_hour, local.tm_min, local.tm_sec, (long)now.tv_usec, (int)getpid(),
        slash ? slash + 1 : file, number);
    return size > 0 && (size_t)size < room ? (size_t)size : 0;
}

static void (*_Atomic through)(LogLevel level, const char *file, int line, const char *text);

void log_through(void (*write)(LogLevel level, const char *file, int line, const char *text))
{
    atomic_store(&through, write);
}

void log_write(LogLevel level, const char *file, int number, const char *format, ...)
{
    char line[LINE_BYTES + 1];
    void (*other)(LogLevel, const char *, int, const char *) = atomic_load(&through);
    size_t header = other ? 0 : put_header(line, LINE_BYTES, level, file, number);
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(line + header, LINE_BYTES - header, format, arguments);
    va_end(arguments);
    if (written < 0)
        return;
    size_t size = header + (size_t)written;
    if (size > LINE_BYTES - 1)
        size = LINE_BYTES - 1;
    size = utf8_sanitize(line, size);
    for (size_t i = header; i < size; i++)
        if ((unsigned char)line[i] < ' ' || line[i] == 0x7f)
            line[i] = ' ';
    if (other) {
        line[size] = '\0';
        other(level, file, number, line);
        return;
    }
    line[size++] = '\n';
    /* A failed write cannot be reported anywhere. */
    ssize_t ignored = write(STDERR_FILENO, line, size);
    (void)ignored;
}
