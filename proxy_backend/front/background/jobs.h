/* Long operations, such as loading a model, in separate threads: never in a loop. */
#ifndef PYTRITON_FRONT_JOBS_H
#define PYTRITON_FRONT_JOBS_H

#include "base/problem.h"

typedef struct Jobs Jobs;

/* Embedded in the object it is about. */
typedef struct Job {
    struct Job *next; /* jobs.c's */
    void (*run)(struct Job *job);  /* called in one of the threads */
    void (*done)(struct Job *job); /* called afterwards in the same thread; may free the job */
    bool dropped; /* jobs.c's: it never runs, as the server ends; `done` reports that */
} Job;

/* At most this many threads, which are started on demand and end when idle. More than `waiting` queued jobs are
 * refused.
 */
Jobs *jobs_new(unsigned threads, unsigned waiting, Problem *problem);
/* Returns false if too many wait already, PROBLEM_TOO_MANY, or the job is dropped, as jobs_stop has been called. Any
 * thread.
 */
bool jobs_give(Jobs *jobs, Job *job, Problem *problem);
/* Set the problem of a dropped job. Returns false. */
bool jobs_refuse(Problem *problem);
/* Returns how many run or wait. */
unsigned jobs_count(Jobs *jobs);
/* Accept no more, drop those that wait, in this thread, and wait for those that run. NULL: does nothing. */
void jobs_stop(Jobs *jobs);
/* Wait for all of them; no more may be added. */
void jobs_free(Jobs *jobs);

#endif
