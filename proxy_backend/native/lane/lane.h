/* This end of a lane: the connection with one worker. The protocol is that of pytriton/_protocol/lanes/lane.py and lane_messages.py. */
#ifndef PYTRITON_LANE_H
#define PYTRITON_LANE_H

#include "lane/memory.h"
#include "lane/peer.h"
#include "wire/msgpack.h"

/* Longer messages lie in the sender's arena. */
enum { INLINE_BYTES = 1 << 16 };

typedef struct {
    int fd;
    Arena arena;
    bool arena_announced;
    bool was_reset; /* sending was told that the worker has left something unread: receiving will not be told again */
    Memory *memories;
    size_t memory_count;
    Peer peer;
    int64_t reached; /* the end of what was last read of the worker's arena, which is filled in a row: so full is it */
    int64_t unreturned; /* bytes of it that were read, and not given back with a credit */
    bool owes; /* the worker waits until what it lent has been read */
    bool lost; /* it ended while its memory was read */
    uint64_t unlooked; /* bytes of outputs since the last look at the memory that is left */
    Buffer spilled; /* a message that lay in the worker's arena */
    bool announced; /* the next packet has the descriptor of memory `announced_number` */
    int64_t announced_number;
    char fault[160]; /* what the worker did wrong, or why there is no memory */
    uint8_t packet[INLINE_BYTES + 1]; /* one byte more than is allowed, so that a packet that was cut off is seen */
} Lane;

typedef enum {
    LANE_OK,
    LANE_CLOSED, /* the worker is gone after it had read the last message */
    LANE_UNREAD, /* the worker is gone, and had not read it */
    LANE_SILENT, /* nothing came within the time that lane_set_patience allows */
    LANE_FAULT, /* see `fault` */
} LaneState;

/* NULL: nobody listens there; or with a `failure`, for free(), there is no memory or descriptor for it here. */
Lane *lane_connect(const char *path, char **failure);
/* Seconds; 0: for ever. */
void lane_set_patience(Lane *lane, double seconds);
/* Whether the worker has read everything that was sent to it. */
bool lane_all_read(const Lane *lane);
/* Send a message; a long one goes into the arena. The arena's descriptor goes first if the worker lacks it. */
LaneState lane_send(Lane *lane, const Buffer *message);
/* Receive the next message that is not about memory. It stays valid until the next call. */
LaneState lane_receive(Lane *lane, Reader *message);
/* Returns bytes of a memory that the worker has announced; NULL: see `fault`. They stay until the next
 * call of it or of lane_receive. */
const uint8_t *lane_memory(Lane *lane, int64_t number, int64_t offset, int64_t size);
/* Find out once whether the worker's own memory can be read. The worker must have answered. */
void lane_ask_peer(Lane *lane);
/* Read the worker's own memory; false: `lost`, or `fault` says what is wrong. */
bool lane_read(Lane *lane, const char *output, void *to, int64_t address, int64_t size);
/* Send the message that so many parts, or what was lent, have been read. */
void put_credit(Buffer *message, int64_t parts);
/* Tell a waiting worker that its lent outputs have been read. If it is gone, the next batch notices. */
void lane_give_back(Lane *lane);
/* End the connection, so that a thread that receives on it sees its end. */
void lane_hang_up(Lane *lane);
void lane_close(Lane *lane);

#endif
