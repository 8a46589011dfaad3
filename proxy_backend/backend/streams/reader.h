/* The reader thread of a lane. */
#ifndef PYTRITON_BACKEND_STREAMS_READER_H
#define PYTRITON_BACKEND_STREAMS_READER_H

/* Read for `streams` (a Streams) until the lane ends. */
void *lane_reader_run(void *streams);

#endif
