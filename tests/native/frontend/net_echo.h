/* The protocol of lines of the server that echoes: net_echo_protocol.c says its lines. */
#pragma once

#include "net/listener.h"

#include <stdatomic.h>

typedef struct {
    atomic_int opened, closed, freed, gone, ended;
} EchoCounts;

extern const Protocol echo_protocol;
extern EchoCounts echo_counts;

/* Start and end the threads that answer `thread` and `sleep`. */
void echo_threads_begin(void);
void echo_threads_end(void);
