#include "thread_pool/thread_pool.h"

#include <pthread.h>
#include <stdlib.h>

struct ThreadPool {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Job *first, **last; /* queued jobs */
    unsigned max_threads, max_waiting;
    unsigned threads, waiting, running;
    bool stopped;
};

ThreadPool *thread_pool_new(unsigned threads, unsigned waiting, Problem *problem)
{
    ThreadPool *jobs = calloc(1, sizeof *jobs);
    if (jobs == NULL || pthread_mutex_init(&jobs->lock, NULL) != 0) {
        free(jobs);
        problem_no_memory(problem);
        return NULL;
    }
    if (pthread_cond_init(&jobs->changed, NULL) != 0) {
        pthread_mutex_destroy(&jobs->lock);
        free(jobs);
        problem_no_memory(problem);
        return NULL;
    }
    jobs->last = &jobs->first;
    jobs->max_threads = threads ? threads : 1;
    jobs->max_waiting = waiting;
    return jobs;
}

/* Run jobs until none is queued. */
static void *work(void *argument)
{
    ThreadPool *jobs = argument;
    pthread_mutex_lock(&jobs->lock);
    while (jobs->first) {
        Job *job = jobs->first;
        jobs->first = job->next;
        if (jobs->first == NULL)
            jobs->last = &jobs->first;
        jobs->waiting--;
        jobs->running++;
        pthread_mutex_unlock(&jobs->lock);
        job->run(job);
        job->done(job);
        pthread_mutex_lock(&jobs->lock);
        jobs->running--;
    }
    jobs->threads--;
    pthread_cond_broadcast(&jobs->changed);
    pthread_mutex_unlock(&jobs->lock);
    return NULL;
}

/* Start a thread per queued job, up to the limit: a thread that was just started, or is between two jobs, takes only
 * one. Returns false if there is no thread at all. The caller holds the lock.
 */
static bool ensure_thread(ThreadPool *jobs)
{
    if (jobs->threads - jobs->running >= jobs->waiting || jobs->threads == jobs->max_threads)
        return true;
    pthread_t thread;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0)
        return jobs->threads > 0;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    bool made = pthread_create(&thread, &attributes, work, jobs) == 0;
    pthread_attr_destroy(&attributes);
    jobs->threads += made;
    return jobs->threads > 0;
}

bool thread_pool_submit(ThreadPool *jobs, Job *job, Problem *problem)
{
    pthread_mutex_lock(&jobs->lock);
    bool full = jobs->waiting >= jobs->max_waiting;
    bool given = false;
    bool dropped = jobs->stopped;
    job->dropped = dropped;
    if (!full && !dropped) {
        job->next = NULL;
        Job **place = jobs->last;
        *place = job;
        jobs->last = &job->next;
        jobs->waiting++;
        given = ensure_thread(jobs);
        if (!given) {
            /* There is no thread that could have taken the job, and no other job was queued. */
            *place = NULL;
            jobs->last = place;
            jobs->waiting--;
        }
    }
    pthread_mutex_unlock(&jobs->lock);
    if (dropped)
        return thread_pool_refuse(problem);
    if (full)
        return problem_set(
            problem, PROBLEM_TOO_MANY, "%u requests of this kind are already waiting", jobs->max_waiting);
    return given ? true : problem_no_memory(problem);
}

bool thread_pool_refuse(Problem *problem)
{
    return problem_set(problem, PROBLEM_UNAVAILABLE, "the server is shutting down");
}

static void wait_for_threads(ThreadPool *jobs)
{
    pthread_mutex_lock(&jobs->lock);
    while (jobs->threads)
        pthread_cond_wait(&jobs->changed, &jobs->lock);
    pthread_mutex_unlock(&jobs->lock);
}

void thread_pool_stop(ThreadPool *jobs)
{
    if (jobs == NULL)
        return;
    pthread_mutex_lock(&jobs->lock);
    Job *job = jobs->first;
    jobs->stopped = true;
    jobs->first = NULL;
    jobs->last = &jobs->first;
    jobs->waiting = 0;
    pthread_mutex_unlock(&jobs->lock);
    while (job) {
        Job *next = job->next;
        job->dropped = true;
        job->done(job);
        job = next;
    }
    wait_for_threads(jobs);
}

void thread_pool_free(ThreadPool *jobs)
{
    if (jobs == NULL)
        return;
    wait_for_threads(jobs);
    pthread_cond_destroy(&jobs->changed);
    pthread_mutex_destroy(&jobs->lock);
    free(jobs);
}
