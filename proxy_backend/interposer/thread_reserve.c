/* Keeps threads in reserve for the moment at which the system allows no more of them (pids.max of a control group,
 * RLIMIT_NPROC, kernel.threads-max).
 *
 * Triton's core starts a thread to destroy each unloaded model, and NVIDIA's executable starts threads for requests to
 * load and unload models. If such a thread cannot be started, std::thread throws where nobody catches it, and the
 * process aborts; the native frontend refuses the request. So a server at the limit could not even unload its models and
 * shut down. This library shadows pthread_create(3): if the kernel refuses a thread, one that was started before and has
 * been parked since runs the function instead. Once the kernel starts threads again, the reserve is filled up.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#define EXPORTED __attribute__((visibility("default")))

typedef struct TRITONSERVER_Error TRITONSERVER_Error;
typedef struct TRITONSERVER_Server TRITONSERVER_Server;
typedef struct TRITONSERVER_ServerOptions TRITONSERVER_ServerOptions;

EXPORTED TRITONSERVER_Error *TRITONSERVER_ServerNew(TRITONSERVER_Server **server, TRITONSERVER_ServerOptions *options);

/* The second half is only for the core. Otherwise, the threads of many unload requests could take the whole reserve, and
 * wait for a lock that the core holds while it starts the thread that destroys the first model.
 */
enum { MAX_PARKED = 16, FOR_CORE = 8 };
/* If no thread is parked, wait for other threads to exit. The kernel offers no event for that, so try again. */
enum { TRIES = 500, PAUSE_MS = 10 };

typedef void *(*Run)(void *argument);
typedef int (*Create)(pthread_t *thread, const pthread_attr_t *attributes, Run run, void *argument);

/* A parked thread. It is on that thread's stack. */
typedef struct Parked {
    struct Parked *next;
    pthread_t thread;
    pthread_cond_t wake;
    Run run; /* NULL while it is parked */
    void *argument;
    sigset_t mask;
} Parked;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Parked *parked;
static unsigned count; /* threads that are parked, or about to be */
static bool is_enabled;

static Create kernel_create(void)
{
    Create create;
    void *found = dlsym(RTLD_NEXT, "pthread_create");
    memcpy(&create, &found, sizeof create);
    return create;
}

/* Wait for a function to run in this thread. */
static void *park(void *unused)
{
    (void)unused;
    Parked self = {.thread = pthread_self(), .wake = PTHREAD_COND_INITIALIZER};
    pthread_mutex_lock(&lock);
    self.next = parked;
    parked = &self;
    while (self.run == NULL)
        pthread_cond_wait(&self.wake, &lock);
    pthread_mutex_unlock(&lock);
    pthread_cond_destroy(&self.wake);
    pthread_sigmask(SIG_SETMASK, &self.mask, NULL);
    return self.run(self.argument);
}

/* Start threads until the reserve is full, or the kernel refuses one. */
static void fill_reserve(Create create)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_mutex_lock(&lock);
    while (is_enabled && count < MAX_PARKED) {
        count++;
        pthread_mutex_unlock(&lock);
        pthread_t thread;
        pthread_sigmask(SIG_SETMASK, &all, &before);
        bool is_started = create(&thread, NULL, park, NULL) == 0;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        pthread_mutex_lock(&lock);
        if (!is_started) {
            count--;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
}

/* Run a function in a parked thread. Returns false if not more than `least` are left. */
static bool run_in_parked(pthread_t *thread, Run run, void *argument, unsigned least)
{
    pthread_mutex_lock(&lock);
    Parked *taken = count > least ? parked : NULL;
    if (taken) {
        parked = taken->next;
        count--;
        *thread = taken->thread;
        taken->argument = argument;
        pthread_sigmask(SIG_SETMASK, NULL, &taken->mask); /* A new thread inherits its creator's mask. */
        taken->run = run;
        pthread_cond_signal(&taken->wake);
    }
    pthread_mutex_unlock(&lock);
    return taken != NULL;
}

/* Returns whether a parked thread, which has the default attributes, is good enough for these. */
static bool fits(const pthread_attr_t *attributes)
{
    pthread_attr_t standard;
    size_t wanted = 0, size = 0;
    if (attributes == NULL)
        return true;
    if (pthread_attr_init(&standard) != 0)
        return false;
    pthread_attr_getstacksize(&standard, &size);
    pthread_attr_destroy(&standard);
    pthread_attr_getstacksize(attributes, &wanted);
    return wanted <= size;
}

/* Returns whether an address belongs to the program itself. The native frontend starts threads in its event loops, which
 * must not wait, and handles a refusal.
 */
static bool is_in_program(void *address)
{
    Dl_info found;
    struct link_map *object = NULL;
    return dladdr1(address, &found, (void **)&object, RTLD_DL_LINKMAP) != 0 && object && *object->l_name == '\0';
}

EXPORTED int pthread_create(
    pthread_t *restrict thread, const pthread_attr_t *restrict attributes, Run run, void *restrict argument)
{
    Create create = kernel_create();
    bool is_own = is_in_program(__builtin_return_address(0));
    unsigned tries = is_own ? 1 : TRIES;
    int error = create(thread, attributes, run, argument);
    while (error == EAGAIN && is_enabled && fits(attributes)) {
        if (run_in_parked(thread, run, argument, is_own ? FOR_CORE : 0)) {
            int state = PTHREAD_CREATE_JOINABLE;
            if (attributes)
                pthread_attr_getdetachstate(attributes, &state);
            return state == PTHREAD_CREATE_DETACHED ? pthread_detach(*thread) : 0;
        }
        if (--tries == 0)
            return EAGAIN;
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_MS * 1000000L}, NULL);
        error = create(thread, attributes, run, argument);
    }
    if (error == 0)
        fill_reserve(create);
    return error;
}

/* Fill the reserve before the core starts threads. Other programs that load this library need none. */
TRITONSERVER_Error *TRITONSERVER_ServerNew(TRITONSERVER_Server **server, TRITONSERVER_ServerOptions *options)
{
    TRITONSERVER_Error *(*core)(TRITONSERVER_Server **, TRITONSERVER_ServerOptions *);
    void *found = dlsym(RTLD_NEXT, "TRITONSERVER_ServerNew");
    memcpy(&core, &found, sizeof core);
    pthread_mutex_lock(&lock);
    is_enabled = true;
    pthread_mutex_unlock(&lock);
    fill_reserve(kernel_create());
    return core(server, options);
}
