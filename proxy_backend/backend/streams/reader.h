/* The thread of a lane. */
#ifndef PYTRITON_BACKEND_STREAMS_READER_H
#define PYTRITON_BACKEND_STREAMS_READER_H

/* Read for `streams` until the lane ends. */
void *lane_reader_run(void *streams);

#endif
