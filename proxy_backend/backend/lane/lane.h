/* The proxy's end of a lane, the connection to one worker. pytriton/_protocol/lanes/lane.py and lane_messages.py
 * describe the protocol.
 */
#ifndef PYTRITON_BACKEND_LANE_H
#define PYTRITON_BACKEND_LANE_H

#include "lane/memory.h"
#include "lane/peer_memory.h"
#include "lane/spin.h"
#include "wire/msgpack.h"

/* Longer messages are written to the sender's arena. */
enum { INLINE_BYTES = 1 << 16 };

typedef struct {
    int fd;
    Arena arena;
    bool arena_announced;
    bool spins; /* receiving may wait actively, as decided by `spin` */
    Spin spin;
    bool was_reset; /* sending failed because the worker left data unread; receiving does not report this again */
    Memory *memories;
    size_t memory_count;
    PeerMemory peer;
    int64_t reached; /* end of the last range read from the worker's arena, which shows how full it is */
    int64_t inline_parts; /* parts outside the arena since then, while it is full */
    int64_t uncredited_bytes; /* bytes of the arena that were read but not yet credited to the worker */
    bool owes_credit; /* the worker is waiting until its lent outputs have been read */
    bool worker_lost; /* the worker ended while its memory was being read */
    uint64_t unchecked_bytes; /* bytes of outputs since available memory was last checked */
    Buffer spilled; /* copy of a message from the worker's arena */
    Buffer serialized; /* a string in Triton's format, while it is sent */
    bool announced; /* the next packet contains the descriptor of memory `announced_number` */
    int64_t announced_number;
    char fault[160]; /* how the worker violated the protocol, or that memory is lacking */
    uint8_t packet[INLINE_BYTES + 1]; /* one byte larger than any valid packet, to detect truncation */
} Lane;

typedef enum {
    LANE_OK,
    LANE_CLOSED, /* the worker is gone; it had read the last message */
    LANE_UNREAD, /* the worker is gone and had not read the last message */
    LANE_TIMEOUT, /* nothing arrived before the time-out of lane_set_timeout */
    LANE_FAULT, /* the reason is in `fault` */
} LaneState;

/* Connect to the worker. Returns NULL if nobody listens at `path`. If memory or descriptors are lacking in this
 * process, `failure` also receives an error, for free().
 */
Lane *lane_connect(const char *path, char **failure);
/* Set the time-out for receiving, in seconds. 0 means none. */
void lane_set_timeout(Lane *lane, double seconds);
/* Returns whether the worker has read everything that was sent to it. */
bool lane_all_read(const Lane *lane);
/* Send a message. A long one goes through the arena, whose descriptor is sent first if the worker lacks it. */
LaneState lane_send(Lane *lane, const Buffer *message);
/* Receive the next message that is not about memory. It stays valid until the next call. */
LaneState lane_receive(Lane *lane, Reader *message);
/* Returns a range of a memory that the worker has announced, valid until the next call of this function or of
 * lane_receive. Returns NULL with the reason in `fault`.
 */
const uint8_t *lane_memory(Lane *lane, int64_t number, int64_t offset, int64_t size);
/* Find out, once, whether the worker's own memory can be read. The worker must already have answered. */
void lane_probe_peer(Lane *lane);
/* Copy from the worker's own memory. Returns false with the reason in `worker_lost` or `fault`. */
bool lane_read_peer(Lane *lane, const char *output, void *to, int64_t address, int64_t size);
/* Write a message that credits this many parts, or a lent answer, as read. */
void lane_put_credit(Buffer *message, int64_t parts);
/* Notify a waiting worker that its lent outputs have been read. If the worker is gone, the next batch detects it. */
void lane_credit_lent(Lane *lane);
/* Shut down the connection. A thread that is receiving on it notices. */
void lane_shutdown(Lane *lane);
void lane_close(Lane *lane);

#endif
