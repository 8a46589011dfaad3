/* Receives from a socket whose reader waits actively, and prints what became of the wait and of the next ones. */
#define _GNU_SOURCE
#include "lane/spin.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static int ends[2];

static void connect_ends(void)
{
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0)
        perror("socketpair");
}

static void close_ends(void)
{
    close(ends[0]);
    close(ends[1]);
}

static void receive(const char *what, Spin *spin)
{
    char to[8];
    ssize_t size = spin_receive(spin, ends[0], to, sizeof to);
    const char *failure = errno == EAGAIN ? "EAGAIN" : errno == ECONNRESET ? "ECONNRESET" : "another error";
    printf("%s: %s\n", what, size > 0 ? "received" : size == 0 ? "closed" : failure);
}

static void *send_soon(void *unused)
{
    (void)unused;
    if (send(ends[1], "x", 1, 0) != 1)
        perror("send");
    return NULL;
}

int main(void)
{
    Spin spin = {0};
    connect_ends();
    for (int i = 0; i < 100; i++) {
        send_soon(NULL);
        char to[8];
        spin_receive(&spin, ends[0], to, sizeof to);
    }
    printf("always there: next wait %s short, %s\n", spin.expected ? "expected to be" : "not expected to be",
        spin.budget_ns == 1000000 ? "most earned" : "less earned");
    spin.expected = true;
    send_soon(NULL);
    receive("there", &spin);

    struct timeval limit = {.tv_usec = 1000};
    setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    spin = (Spin){.expected = true, .budget_ns = 1};
    receive("nothing", &spin);
    printf("next wait %s short, %s\n", spin.expected ? "expected to be" : "not expected to be",
        spin.budget_ns < 0 ? "in debt" : "not in debt");
    int waits = 0;
    for (spin.budget_ns = -20000; spin.budget_ns <= 0; waits++) {
        char to[8];
        spin_receive(&spin, ends[0], to, sizeof to);
    }
    printf("waits until it may poll again: %d\n", waits);
    close_ends();

    connect_ends();
    pthread_t sender;
    spin = (Spin){.expected = true, .budget_ns = 1};
    if (pthread_create(&sender, NULL, send_soon, NULL) != 0)
        return 1;
    char to[8];
    printf("from another thread: %zd\n", spin_receive(&spin, ends[0], to, sizeof to));
    pthread_join(sender, NULL);

    spin = (Spin){.expected = true, .budget_ns = 1};
    close(ends[1]);
    receive("the peer has closed", &spin);
    close(ends[0]);

    connect_ends();
    spin = (Spin){.expected = true, .budget_ns = 1};
    if (send(ends[0], "x", 1, 0) != 1)
        return 1;
    close(ends[1]);
    receive("the peer has not read", &spin);
    close(ends[0]);
    return 0;
}
