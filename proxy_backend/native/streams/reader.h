/* The thread of a lane. */
#ifndef PYTRITON_READER_H
#define PYTRITON_READER_H

/* Read for `streams` until the lane ends. */
void *read_lane(void *streams);

#endif
