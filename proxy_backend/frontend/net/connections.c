/* The connections of each loop, and their total number. */
#define _GNU_SOURCE
#include "net/connection_internal.h"

#include "common/clock.h"

#include <stddef.h>
#include <stdlib.h>

struct Connections {
    Connection *first;
    bool draining, retiring;
    Task drain, retire, abort;
    /* the task is queued in the loop and must not be queued again */
    atomic_bool posted_drain, posted_retire, posted_abort;
};

static _Atomic uint64_t count, accepted;
static pthread_mutex_t none_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t none = PTHREAD_COND_INITIALIZER;

static void drain_all(Task *task)
{
    Connections *all = (Connections *)((char *)task - offsetof(Connections, drain));
    atomic_store(&all->posted_drain, false);
    all->draining = true;
    for (Connection *connection = all->first; connection; connection = connection->next) {
        if (connection->phase == PHASE_OPEN && !connection_is_over(connection))
            connection->endpoint->protocol->drain(connection);
    }
}

static void retire_all(Task *task)
{
    Connections *all = (Connections *)((char *)task - offsetof(Connections, retire));
    atomic_store(&all->posted_retire, false);
    all->retiring = true;
    for (Connection *connection = all->first; connection; connection = connection->next)
        if (connection->phase == PHASE_OPEN && !connection_is_over(connection))
            connection_retire(connection);
}

static void abort_all(Task *task)
{
    Connections *all = (Connections *)((char *)task - offsetof(Connections, abort));
    atomic_store(&all->posted_abort, false);
    for (Connection *connection = all->first; connection; connection = connection->next)
        connection_abort(connection);
}

/* Free the connections of a loop whose thread has ended or never began. No protocol is called. */
static void release(void *kept)
{
    free(kept);
}

Connections *connections_in(Loop *loop)
{
    Connections *all = loop_slot(loop, LOOP_CONNECTIONS);
    if (all)
        return all;
    all = calloc(1, sizeof *all);
    if (all) {
        all->drain.run = drain_all;
        all->retire.run = retire_all;
        all->abort.run = abort_all;
        loop_set_slot(loop, LOOP_CONNECTIONS, all, release);
    }
    return all;
}

void connections_drain(Loop *loop)
{
    Connections *all = loop_slot(loop, LOOP_CONNECTIONS);
    if (all && !atomic_exchange(&all->posted_drain, true))
        loop_post(loop, &all->drain);
}

void connections_retire(Loop *loop)
{
    Connections *all = loop_slot(loop, LOOP_CONNECTIONS);
    if (all && !atomic_exchange(&all->posted_retire, true))
        loop_post(loop, &all->retire);
}

void connections_abort(Loop *loop)
{
    Connections *all = loop_slot(loop, LOOP_CONNECTIONS);
    if (all && !atomic_exchange(&all->posted_abort, true))
        loop_post(loop, &all->abort);
}

bool connections_admit(const Limits *limits)
{
    atomic_fetch_add(&accepted, 1);
    if (atomic_fetch_add(&count, 1) < limits->connections)
        return true;
    connections_remove();
    return false;
}

void connections_add(void)
{
    atomic_fetch_add(&accepted, 1);
    atomic_fetch_add(&count, 1);
}

void connections_remove(void)
{
    if (atomic_fetch_sub(&count, 1) != 1)
        return;
    pthread_mutex_lock(&none_lock);
    pthread_cond_broadcast(&none);
    pthread_mutex_unlock(&none_lock);
}

void connections_link(Connection *connection)
{
    Connections *all = connections_in(connection->loop);
    connection->link = &all->first;
    connection->next = all->first;
    if (connection->next)
        connection->next->link = &connection->next;
    all->first = connection;
}

bool connections_are_draining(Loop *loop)
{
    return connections_in(loop)->draining;
}

bool connections_are_retiring(Loop *loop)
{
    return connections_in(loop)->retiring;
}

void connections_unlink(Connection *connection)
{
    *connection->link = connection->next;
    if (connection->next)
        connection->next->link = connection->link;
}

uint64_t connections_count(void)
{
    return atomic_load(&count);
}

uint64_t connections_accepted(void)
{
    return atomic_load(&accepted);
}

bool connections_wait(uint64_t max_ms)
{
    uint64_t until_ns = clock_ns() + max_ms * 1000000u;
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u), .tv_nsec = (long)(until_ns % 1000000000u)};
    int error = 0;
    pthread_mutex_lock(&none_lock);
    while (connections_count() && error == 0)
        error = pthread_cond_clockwait(&none, &none_lock, CLOCK_MONOTONIC, &until);
    pthread_mutex_unlock(&none_lock);
    return connections_count() == 0;
}
