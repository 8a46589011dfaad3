/* Work that takes long, such as loading a model, in threads of its own: never in a loop. */
#ifndef PYTRITON_FRONT_JOBS_H
#define PYTRITON_FRONT_JOBS_H

#include "base/problem.h"

typedef struct Jobs Jobs;

/* It lies in what it is about. */
typedef struct Job {
    struct Job *next; /* jobs.c's */
    void (*run)(struct Job *job);  /* in one of the threads */
    void (*done)(struct Job
            *job); /* then, in the same thread: such as loop_post. The job is the caller's again; it may free it. */
    bool dropped; /* jobs.c's: it has not been run, and never is, as the server ends: `done` says so to whoever waits */
} Job;

/* At most so many threads, which come when they are needed and go when they are not. More than `waiting` jobs are refused. */
Jobs *jobs_new(unsigned threads, unsigned waiting, Problem *problem);
/* False: too many wait already, PROBLEM_TOO_MANY, or the job is dropped, as jobs_stop has been called. Any thread. */
bool jobs_give(Jobs *jobs, Job *job, Problem *problem);
/* What is said of a job that is dropped. Returns false. */
bool jobs_refuse(Problem *problem);
/* How many run or wait. */
unsigned jobs_count(Jobs *jobs);
/* Take no more, drop those that wait, in this thread, and wait for those that run. NULL: nothing is done. */
void jobs_stop(Jobs *jobs);
/* Wait for all of them; no more may be given. */
void jobs_free(Jobs *jobs);

#endif
