/* This end of a lane: the connection to one worker. The protocol is that of pytriton/_protocol/lanes/lane.py and
 * lane_messages.py.
 */
#ifndef PYTRITON_BACKEND_LANE_H
#define PYTRITON_BACKEND_LANE_H

#include "lane/memory.h"
#include "lane/peer_memory.h"
#include "wire/msgpack.h"

/* Longer messages are put into the sender's arena. */
enum { INLINE_BYTES = 1 << 16 };

typedef struct {
    int fd;
    Arena arena;
    bool arena_announced;
    bool was_reset; /* sending reported that the worker left something unread: receiving does not report it again */
    Memory *memories;
    size_t memory_count;
    PeerMemory peer;
    int64_t reached; /* end of the last range read from the worker's arena: its fill level */
    int64_t uncredited_bytes; /* bytes of it that were read and not yet returned with a credit */
    bool owes_credit; /* the worker waits until the outputs it lent have been read */
    bool worker_lost; /* it ended while its memory was read */
    uint64_t unchecked_bytes; /* bytes of outputs since the last check of available memory */
    Buffer spilled; /* a message that was in the worker's arena */
    bool announced; /* the next packet has the descriptor of memory `announced_number` */
    int64_t announced_number;
    char fault[160]; /* how the worker broke the protocol, or why there is no memory */
    uint8_t packet[INLINE_BYTES + 1]; /* one byte more than the maximum, to detect truncation */
} Lane;

typedef enum {
    LANE_OK,
    LANE_CLOSED, /* the worker is gone after it read the last message */
    LANE_UNREAD, /* the worker is gone and did not read it */
    LANE_TIMEOUT, /* nothing arrived within the time set by lane_set_timeout */
    LANE_FAULT, /* see `fault` */
} LaneState;

/* Connect to the worker. Returns NULL if nobody listens at `path`, or with a `failure`, for free(), if there is no
 * memory or descriptor for it here.
 */
Lane *lane_connect(const char *path, char **failure);
/* Set the receive time-out in seconds; 0: none. */
void lane_set_timeout(Lane *lane, double seconds);
/* Returns whether the worker has read everything that was sent to it. */
bool lane_all_read(const Lane *lane);
/* Send a message; a long one goes into the arena. Sends the arena's descriptor first if the worker lacks it. */
LaneState lane_send(Lane *lane, const Buffer *message);
/* Receive the next message that is not about memory. It stays valid until the next call. */
LaneState lane_receive(Lane *lane, Reader *message);
/* Returns bytes of a memory that the worker has announced, valid until the next call of this function or of
 * lane_receive. NULL: see `fault`.
 */
const uint8_t *lane_memory(Lane *lane, int64_t number, int64_t offset, int64_t size);
/* Find out once whether the worker's own memory can be read. The worker must have answered. */
void lane_probe_peer(Lane *lane);
/* Read the worker's own memory. Returns false with the reason in `worker_lost` or `fault`. */
bool lane_read_peer(Lane *lane, const char *output, void *to, int64_t address, int64_t size);
/* Write the message that this many parts, or a lent answer, have been read. */
void lane_put_credit(Buffer *message, int64_t parts);
/* Notify a waiting worker that its lent outputs have been read. If it is gone, the next batch detects that. */
void lane_credit_lent(Lane *lane);
/* Shut the connection down, so that a thread that receives on it sees its end. */
void lane_shutdown(Lane *lane);
void lane_close(Lane *lane);

#endif
