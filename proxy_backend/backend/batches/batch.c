/* Executes a batch of a model that answers each request once. tritonserver's thread passes it to a worker, waits for the
 * answer, and passes it to another worker if that one is lost.
 *
 * One of the requests may be the reason why a worker is lost or hangs. So they are then retried one by one, and not
 * merged with others. If a request ends another worker, only that request fails.
 *
 *     requests   [ answered … | being tried | … to be tried one by one ]
 *                0            answered      end                        count
 */
#define _GNU_SOURCE
#include "batches/batch.h"

#include "common/clock.h"
#include "base/strings.h"
#include "lane/memory.h"
#include "proxy/proxy.h"
#include "translation/request_check.h"
#include "translation/requests.h"
#include "translation/responses.h"
#include "triton/errors.h"
#include "wire/protocol.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    Proxy *proxy;
    TRITONBACKEND_Request **requests;
    uint32_t count;
    uint32_t answered; /* number of requests that have been answered */
    uint32_t end; /* requests from `answered` to here are being tried */
    bool is_isolated; /* requests are tried one by one, because a worker was lost with several of them */
    bool was_read; /* the hanging worker has read the requests */
    bool worker_ends; /* the worker answered late: the dispatcher is already ending it */
    bool reported; /* the statistics of the batch were reported to tritonserver */
    uint64_t begun_ns, sent_ns, answered_ns;
    uint64_t number; /* batch number of the latest attempt; 0 before the first */
    uint32_t first, last; /* range of requests in the latest attempt */
    int lost_workers; /* number of workers lost with the requests being tried */
    int consecutive_losses; /* individually retried requests that lost a worker since the last answered one */
    PartialResponse *partial; /* partial response to the first unanswered request */
} Execution;

/* Returns the receiver of the next answer. */
static Receiver receiver(const Execution *batch)
{
    uint32_t at = batch->answered;
    bool sent = at >= batch->first && at < batch->last;
    return (Receiver){.request = batch->requests[at],
        .sent = {batch->begun_ns, sent ? batch->number : 0, at - batch->first},
        .partial = batch->partial,
        .last = batch->answered + 1 == batch->end};
}

/* Report the statistics of the next request, which has been answered or must be queued again, and return it to
 * tritonserver.
 */
static void release_request(Execution *batch, bool success, uint32_t flags)
{
    TRITONBACKEND_Request *request = batch->requests[batch->answered];
    uint64_t end_ns = clock_ns();
    triton_error_consume(TRITONBACKEND_ModelInstanceReportStatistics(
        batch->proxy->instance, request, success, batch->begun_ns, batch->sent_ns, batch->answered_ns, end_ns));
    triton_error_consume(TRITONBACKEND_RequestRelease(request, flags));
    partial_response_free(batch->partial);
    batch->partial = NULL;
}

/* Answer the requests up to `end` with an error. With `names`, each error contains the id of its request. */
static void fail_up_to(Execution *batch, uint32_t end, TRITONSERVER_Error_Code code, const char *text, bool names)
{
    batch->sent_ns = batch->sent_ns ? batch->sent_ns : batch->begun_ns;
    batch->answered_ns = clock_ns();
    for (; batch->answered < end; batch->answered++) {
        Receiver to = receiver(batch);
        response_send_error(batch->proxy, &to, code, text, names);
        release_request(batch, false, RELEASE_ALL);
    }
}

/* Answer the requests being tried, or all remaining ones if `whole`, with an "unavailable" error. Frees `text`. */
static void fail_unavailable(Execution *batch, bool whole, char *text)
{
    fail_up_to(batch, whole ? batch->count : batch->end, ERROR_UNAVAILABLE, text, true);
    free(text);
}

static void fail_protocol_fault(Execution *batch)
{
    char *text = strdup_printf("model %s: %s", batch->proxy->model->name, batch->proxy->lane->fault);
    proxy_drop_lane(batch->proxy);
    fail_unavailable(batch, false, text);
}

/* Report the batch to tritonserver's statistics: once as a whole, or per request if requests are tried individually. */
static void report_batch(Execution *batch)
{
    uint64_t rows = 0;
    if (batch->reported)
        return;
    batch->reported = !batch->is_isolated;
    for (uint32_t i = batch->answered; i < batch->end; i++)
        rows += request_rows(batch->proxy->model, batch->requests[i]);
    triton_error_consume(TRITONBACKEND_ModelInstanceReportBatchStatistics(
        batch->proxy->instance, rows, batch->begun_ns, batch->sent_ns, batch->answered_ns, clock_ns()));
}

/* Forward the worker's responses to tritonserver. Returns false if the worker was lost or violated the protocol. */
static bool forward_responses(Execution *batch, Reader *answer)
{
    Proxy *proxy = batch->proxy;
    msgpack_get_array(answer);
    Slice tag = msgpack_get_text(answer);
    int64_t id = msgpack_get_int(answer);
    bool lent = slice_is(tag, BATCH_LENT_NAME), done = lent || slice_is(tag, BATCH_DONE_NAME);
    if (answer->malformed || id != (int64_t)proxy->batch || !(done || slice_is(tag, BATCH_FAILED_NAME))) {
        snprintf(proxy->lane->fault, sizeof proxy->lane->fault, "the worker answered batch %lu with %.*s %ld",
            proxy->batch, (int)(tag.size < 40 ? tag.size : 40), tag.start, (long)id);
        return false;
    }
    batch->answered_ns = clock_ns();
    if (!done) { /* Count a failed batch as one execution with failed requests, as Triton's python backend does. */
        report_batch(batch);
        char *text = strdup_printable(msgpack_get_text(answer));
        fail_up_to(batch, batch->end, ERROR_INTERNAL, text, !proxy->model->is_triton_python);
        free(text);
        return true;
    }
    proxy->lane->owes_credit = lent;
    uint32_t responses = msgpack_get_array(answer);
    if (responses != batch->end - batch->answered) {
        snprintf(proxy->lane->fault, sizeof proxy->lane->fault, "the worker returned %u responses to %u requests",
            responses, batch->end - batch->answered);
        return false;
    }
    report_batch(batch);
    for (; batch->answered < batch->end; batch->answered++) {
        if (lent && batch->partial == NULL)
            batch->partial = partial_response_new();
        Receiver to = receiver(batch);
        Outcome outcome;
        bool right = response_forward(proxy, &to, answer, &outcome);
        if (proxy->lane->worker_lost)
            return false;
        if (right || outcome.final)
            release_request(batch, !outcome.failed, outcome.reschedule ? RELEASE_RESCHEDULE : RELEASE_ALL);
        batch->answered += !right && outcome.final;
        if (!right)
            return false;
    }
    lane_credit_lent(proxy->lane); /* Also give the credit if the last response had nothing to read. */
    return true;
}

/* Returns what the dispatcher needs to know to decide about the requests being tried. */
static LossReport loss_report(const Execution *batch)
{
    return (LossReport){.lost_workers = batch->lost_workers,
        .requests = batch->end - batch->answered,
        .consecutive_losses = batch->is_isolated ? batch->consecutive_losses + 1 : 0};
}

/* Returns the id of the request being tried, for free(), or NULL if several are being tried. */
static char *only_request_id(const Execution *batch)
{
    if (batch->end - batch->answered != 1)
        return NULL;
    Receiver to = receiver(batch);
    char *given = request_given_id(batch->proxy, to.request), *name = request_id(given, &to.sent);
    free(given);
    return name;
}

/* Send the requests to the worker and wait for its answer. `failure` receives the reason, for free(), if nobody will
 * answer them; `whole` is set if the rest of the batch fails with them. `again` is set if another worker has to be
 * tried.
 */
static LaneState send_and_receive(Execution *batch, Reader *answer, bool *again, char **failure, bool *whole)
{
    Proxy *proxy = batch->proxy;
    LossReport loss = loss_report(batch);
    batch->worker_ends = false;
    /* Several requests mean that other threads have work, too, for which polling would take the processor. */
    proxy->lane->spins = proxy->streams == NULL && batch->end - batch->first == 1;
    LaneState state = lane_send(proxy->lane, &proxy->message);
    batch->sent_ns = clock_ns();
    while (state == LANE_OK) {
        state = lane_receive(proxy->lane, answer);
        if (state != LANE_TIMEOUT)
            break;
        double wait_s = 0;
        batch->was_read = lane_all_read(proxy->lane);
        loss.request_id = only_request_id(batch);
        *failure = proxy_report_overdue(proxy, &loss, batch->was_read, &wait_s, again);
        free(loss.request_id);
        *whole = loss.fails_rest;
        if (*failure || *again) {
            /* The answer may have arrived while the dispatcher decided. */
            lane_set_timeout(proxy->lane, 1e-6);
            if (lane_receive(proxy->lane, answer) != LANE_OK)
                return LANE_TIMEOUT;
            free(*failure);
            *failure = NULL;
            batch->worker_ends = true;
            return LANE_OK;
        }
        lane_set_timeout(proxy->lane, wait_s);
        proxy->has_dispatcher_timeout = true;
        state = LANE_OK;
    }
    if (state == LANE_OK && proxy->has_dispatcher_timeout) {
        proxy->has_dispatcher_timeout = false;
        lane_set_timeout(proxy->lane, proxy->execution_timeout_s);
    }
    return state;
}

/* Handle the loss or hang of a worker: retry the requests one by one from now on. If `text` is not NULL, answer them
 * with this error instead.
 */
static void retry_individually(Execution *batch, char *text, bool whole)
{
    batch->consecutive_losses += batch->is_isolated;
    if (text) {
        fail_unavailable(batch, whole, text);
        return;
    }
    batch->is_isolated = true;
    batch->end = batch->answered + 1;
}

/* Handle requests that the worker has not answered. */
static void handle_no_answer(Execution *batch, LaneState state, char *text, bool whole)
{
    Proxy *proxy = batch->proxy;
    proxy_drop_lane(proxy);
    if (state == LANE_CLOSED) {
        batch->lost_workers++;
        LossReport loss = loss_report(batch);
        loss.request_id = only_request_id(batch);
        text = proxy_report_loss(proxy, &loss);
        free(loss.request_id);
        retry_individually(batch, text, loss.fails_rest);
    } else if (state == LANE_TIMEOUT && batch->was_read) {
        batch->lost_workers++;
        retry_individually(batch, text, whole);
    } else if (text) {
        fail_unavailable(batch, whole, text);
    } /* Otherwise, the worker had not begun: send the requests unchanged to another worker. */
}

/* Send the requests being tried to a worker. Requests that it does not answer stay, and the caller tries again. */
static void serve_requests(Execution *batch)
{
    Proxy *proxy = batch->proxy;
    uint32_t count = batch->end - batch->answered;
    Reader answer;
    bool again = false, whole = false;
    char *text = proxy_attach(proxy, true);
    if (text) {
        fail_unavailable(batch, true, text);
        return;
    }
    text = batch_encode(proxy, batch->requests + batch->answered, count, batch->is_isolated, batch->begun_ns, &again);
    if (text) {
        fail_unavailable(batch, false, text);
        return;
    }
    if (again) { /* The worker is waiting for this very batch. */
        proxy_drop_lane(proxy);
        return;
    }
    batch->number = proxy->batch;
    batch->first = batch->answered;
    batch->last = batch->end;
    LaneState state = send_and_receive(batch, &answer, &again, &text, &whole);
    if (state == LANE_OK && forward_responses(batch, &answer)) {
        batch->consecutive_losses = 0;
        lane_probe_peer(proxy->lane);
        if (batch->worker_ends)
            proxy_drop_lane(proxy);
        return;
    }
    if (state == LANE_OK && proxy->lane->worker_lost)
        state = LANE_CLOSED;
    if (state == LANE_OK || state == LANE_FAULT)
        fail_protocol_fault(batch);
    else
        handle_no_answer(batch, state, text, whole);
}

void batch_execute(Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count)
{
    Execution batch = {.proxy = proxy, .requests = requests, .begun_ns = clock_ns()};
    batch.count = batch.end = requests_reject_invalid(proxy, requests, count);
    while (batch.answered < batch.count) {
        /* Try the next request alone, because a worker was lost with it and others. */
        if (batch.answered == batch.end) {
            batch.end++;
            batch.lost_workers = 1;
        }
        serve_requests(&batch);
    }
    if (proxy->lane)
        arena_trim_schedule(&proxy->lane->arena);
}

void batch_refuse(Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count, const char *text)
{
    Execution batch = {.proxy = proxy, .requests = requests, .begun_ns = clock_ns(), .count = count, .end = count};
    fail_up_to(&batch, count, ERROR_UNAVAILABLE, text, true);
}
