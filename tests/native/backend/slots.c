/* Memory for the outputs of many calls at once, and what is left of it: each line says what this end keeps, in MiB. */
#define _GNU_SOURCE
#include "lane/slots.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MIB = 1 << 20, MANY = 12 };

static void say(const char *when, Slots *slots)
{
    printf("%s: %d%s\n", when, (int)(slots->retained / MIB), slots_exceed_limit(slots) ? ", large" : "");
}

static void use(Slots *slots, int count)
{
    Slot *taken[MANY];
    char *failure;
    for (int i = 0; i < count; i++) {
        taken[i] = slot_acquire(slots, 8 * MIB, &failure);
        if (taken[i] == NULL || !slot_announce(slots, taken[i]))
            exit(2);
    }
    say("in use", slots);
    for (int i = 0; i < count; i++)
        slot_release(slots, taken[i]);
}

int main(int count, char **words)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const struct timespec pause = {.tv_nsec = 5000000};
    char path[100], message[100];
    Slots slots;
    if (count != 2)
        return 2;
    snprintf(address.sun_path, sizeof address.sun_path, "%s/w.call", words[1]);
    snprintf(path, sizeof path, "%s/w.sock", words[1]);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1))
        return 2;
    slots_open(&slots, call_connection_open(path));
    int worker = accept(listener, NULL, NULL);
    use(&slots, MANY);
    slots_trim(&slots);
    say("at once", &slots);
    while (slots_exceed_limit(&slots)) {
        nanosleep(&pause, NULL);
        slots_trim(&slots);
    }
    say("after a while", &slots);
    use(&slots, 1);
    say("another", &slots);
    int forgotten = 0;
    ssize_t size;
    while ((size = recv(worker, message, sizeof message, MSG_DONTWAIT)) >= 0)
        forgotten += memmem(message, (size_t)size, "Forget", 6) != NULL;
    printf("forgotten: %d\n", forgotten);
    slots_close(&slots);
    call_connection_close(slots.connection);
    call_connection_free(slots.connection);
    close(worker);
    close(listener);
    return 0;
}
