/* Runs the frontend's libraries for tests: a question on standard input, its answer on standard output, again and again.
 * A question: one byte that names the function, four of a size, so many bytes. An answer: four of a size, so many bytes.
 */
#ifndef PYTRITON_TESTS_FRONTEND_DRIVER_H
#define PYTRITON_TESTS_FRONTEND_DRIVER_H

#include "base/problem.h"
#include "common/buffer.h"

/* Each writes its answer, which begins with "+", or with "-" and what is wrong. */
typedef void Function(Slice question, Buffer *response);

void response_send_problem(Buffer *response, Problem *problem);
/* Cut so many bytes of a number, little endian, off a question. */
uint64_t cut_number(Slice *question, int bytes);
/* Cut a size of four bytes, and so many bytes. */
Slice cut_slice(Slice *question);
/* A copy of exactly its size, so that reading beyond it is noticed; for free(). */
Slice apart(Slice bytes);

Function run_utf8, run_mend, run_names, run_digest, run_expand, run_shrink, run_blocks;
Function run_json, run_leaves, run_later, run_read_double, run_write_double, run_write_float, run_write_string;
Function run_head, run_chunks, run_target, run_encoding, run_infer, run_unread, run_totals, run_routes;

#endif
