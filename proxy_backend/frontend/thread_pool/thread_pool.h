/* Long operations, such as loading a model, in separate threads: never in a loop. */
#ifndef PYTRITON_FRONTEND_THREAD_POOL_H
#define PYTRITON_FRONTEND_THREAD_POOL_H

#include "base/problem.h"

typedef struct ThreadPool ThreadPool;

/* Embedded in the object it is about. */
typedef struct Job {
    struct Job *next; /* thread_pool.c's */
    void (*run)(struct Job *job);  /* called in one of the threads */
    void (*done)(struct Job *job); /* called afterwards in the same thread; may free the job */
    bool dropped; /* thread_pool.c's: it never runs, as the server ends; `done` reports that */
} Job;

/* At most this many threads, which are started on demand and end when idle. More than `waiting` queued jobs are
 * refused.
 */
ThreadPool *thread_pool_new(unsigned threads, unsigned waiting, Problem *problem);
/* Returns false if too many wait already, PROBLEM_TOO_MANY, or the job is dropped, as thread_pool_stop has been called. Any
 * thread.
 */
bool thread_pool_submit(ThreadPool *jobs, Job *job, Problem *problem);
/* Set the problem of a dropped job. Returns false. */
bool thread_pool_refuse(Problem *problem);
/* Returns how many run or wait. */
unsigned thread_pool_count(ThreadPool *jobs);
/* Accept no more, drop those that wait, in this thread, and wait for those that run. NULL: does nothing. */
void thread_pool_stop(ThreadPool *jobs);
/* Wait for all of them; no more may be added. */
void thread_pool_free(ThreadPool *jobs);

#endif
