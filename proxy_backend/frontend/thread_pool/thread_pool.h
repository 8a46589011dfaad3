/* Threads for slow operations, such as loading a model, which must not run in an event loop. */
#ifndef PYTRITON_FRONTEND_THREAD_POOL_H
#define PYTRITON_FRONTEND_THREAD_POOL_H

#include "base/problem.h"

typedef struct ThreadPool ThreadPool;

/* A job. It is part of the object that it is about. */
typedef struct Job {
    struct Job *next; /* used by thread_pool.c */
    void (*run)(struct Job *job);  /* called in one of the threads */
    void (*done)(struct Job *job); /* called after `run` in the same thread; may free the job */
    bool dropped; /* set by thread_pool.c: `run` was not called, because the server ends */
} Job;

/* Create a pool of at most `threads` threads, which are started when needed and end when idle. At most `waiting` jobs
 * are queued.
 */
ThreadPool *thread_pool_new(unsigned threads, unsigned waiting, Problem *problem);
/* Queue a job. Returns false with PROBLEM_TOO_MANY if too many are queued, or after thread_pool_stop. Any thread. */
bool thread_pool_submit(ThreadPool *jobs, Job *job, Problem *problem);
/* Set the problem for a dropped job. Returns false. */
bool thread_pool_refuse(Problem *problem);
/* Accept no more jobs, drop queued ones (in this thread), and wait for running ones. NULL is allowed. */
void thread_pool_stop(ThreadPool *jobs);
/* Free the pool after waiting for all its jobs. None may be added meanwhile. */
void thread_pool_free(ThreadPool *jobs);

#endif
