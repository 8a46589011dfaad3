/* Gives jobs one right after the other, each of which waits until all of them run. The arguments: how many threads there may be, and rounds. */
#include "thread_pool/thread_pool.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST = 16, PATIENCE_S = 60 };

static pthread_barrier_t all_run;
static Job jobs[MOST];

static void run(Job *job)
{
    (void)job;
    pthread_barrier_wait(&all_run);
}

static void done(Job *job)
{
    (void)job;
}

int main(int count, char **arguments)
{
    unsigned threads = count > 1 ? (unsigned)atoi(arguments[1]) : 2;
    int rounds = count > 2 ? atoi(arguments[2]) : 1, refused = 0;
    Problem problem = {0};
    alarm(PATIENCE_S);
    pthread_barrier_init(&all_run, NULL, threads);
    for (int round = 0; round < rounds; round++) {
        ThreadPool *all = thread_pool_new(threads, MOST, &problem);
        for (unsigned i = 0; i < threads; i++) {
            jobs[i] = (Job){.run = run, .done = done};
            refused += !thread_pool_submit(all, &jobs[i], &problem);
        }
        thread_pool_free(all);
    }
    printf("refused %d\n", refused);
    return 0;
}
