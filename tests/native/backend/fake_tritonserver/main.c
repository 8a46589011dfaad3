/* As much of tritonserver as the compiled proxy needs to serve batches: a program of its own, for sanitizers.
 *
 *     fake_tritonserver CONFIG.json BATCHES REQUESTS
 *
 * loads a model with this configuration, gives it so many batches of so many requests each, and prints what comes
 * back, a line for each response: an error with its code, or outputs in hexadecimal. It waits for the answers of a
 * decoupled model before it ends the instance.
 *
 * FAKE_GONE_AFTER=n: clients of a decoupled model go when they have n responses. FAKE_HANGS: it never takes one.
 * FAKE_API=n: the minor version of its API. FAKE_CHANGES: when a BYTES output is to be written, what the worker has at the
 * beginning of its memory changes.
 * FAKE_WRONG=what: of requests with an odd number, this is not as it should be: a text is no UTF-8, or a string is longer
 * than its input. FAKE_NUMBER=number: the parameter of that name. FAKE_FIRST: the number of the first request.
 */
#define _GNU_SOURCE
#include "fake_tritonserver.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int released, statistics;
int factories;

TRITONSERVER_Error *TRITONBACKEND_Initialize(TRITONBACKEND_Backend *);
TRITONSERVER_Error *TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model *);
TRITONSERVER_Error *TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model *);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance *);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance *);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReady(TRITONBACKEND_ModelInstance *);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance *, TRITONBACKEND_Request **, uint32_t);

static void demand(TRITONSERVER_Error *error)
{
    if (error) {
        printf("refused: %s\n", error->text);
        TRITONSERVER_ErrorDelete(error);
        exit(3);
    }
}

static char *contents(const char *path)
{
    char *text = calloc(1, 1 << 16);
    FILE *file = fopen(path, "r");
    if (file == NULL || fread(text, 1, (1 << 16) - 1, file) == 0)
        exit(2);
    fclose(file);
    return text;
}

/* Whether a proxy is there still. One whose last stream is over only just ends by itself, after the instance. */
static bool has_sockets(void)
{
    bool found = false;
    DIR *open_files = opendir("/proc/self/fd");
    struct dirent *entry;
    while (open_files && !found && (entry = readdir(open_files))) {
        char target[32] = {0};
        ssize_t size = readlinkat(dirfd(open_files), entry->d_name, target, sizeof target - 1);
        found = size > 0 && strncmp(target, "socket:", 7) == 0;
    }
    if (open_files)
        closedir(open_files);
    return found;
}

int main(int count, char **words)
{
    if (count != 4)
        return 2;
    int batches = atoi(words[2]), requests = atoi(words[3]);
    TRITONBACKEND_Model model = {.config = contents(words[1])};
    TRITONBACKEND_ModelInstance instance = {.model = &model};
    TRITONBACKEND_Request *request = calloc((size_t)requests, sizeof *request);
    TRITONBACKEND_Request **batch = calloc((size_t)requests, sizeof *batch);
    for (int i = 0; i < requests; i++)
        request[i].number = i + (getenv("FAKE_FIRST") ? atoi(getenv("FAKE_FIRST")) : 0);
    demand(TRITONBACKEND_Initialize(NULL));
    demand(TRITONBACKEND_ModelInitialize(&model));
    demand(TRITONBACKEND_ModelInstanceInitialize(&instance));
    if (getenv("FAKE_READY")) { /* as later cores do */
        TRITONSERVER_Error *error = TRITONBACKEND_ModelInstanceReady(&instance);
        printf("ready: %s\n", error ? TRITONSERVER_ErrorMessage(error) : "yes");
        if (error)
            TRITONSERVER_ErrorDelete(error);
    }
    for (int i = 0; i < batches; i++) {
        for (int k = 0; k < requests; k++) /* who executes them may put them in another order */
            batch[k] = &request[k];
        demand(TRITONBACKEND_ModelInstanceExecute(&instance, batch, (uint32_t)requests));
    }
    while (__atomic_load_n(&factories, __ATOMIC_SEQ_CST))
        usleep(1000);
    demand(TRITONBACKEND_ModelInstanceFinalize(&instance));
    demand(TRITONBACKEND_ModelFinalize(&model));
    while (has_sockets())
        usleep(1000);
    free(model.config);
    free(request);
    free(batch);
    printf("released %d, statistics of %d\n", released, statistics);
    return 0;
}
