/* One batch of a model that answers each request once. It is passed to a worker, and to another one if that is lost;
 * tritonserver's thread waits for the answer.
 *
 * One of the requests may be why a worker is lost or hangs, so they are retried individually, and not merged with
 * others. A request that ends another worker fails alone.
 *
 *     requests   [ answered … | tried now | … not yet tried individually ]
 *                0            answered    end                            count
 */
#define _GNU_SOURCE
#include "batches/batch.h"

#include "base/clock.h"
#include "base/text.h"
#include "lane/idle.h"
#include "proxy/attachment.h"
#include "translation/refusals.h"
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
    uint32_t answered; /* how many have been answered */
    uint32_t end; /* those from there to here are being tried */
    bool apart; /* retried individually: a worker was lost with it and others */
    bool taken; /* the hanging worker has read them */
    bool reported; /* tritonserver has the batch in its statistics */
    uint64_t begun_ns, sent_ns, answered_ns;
    uint64_t number; /* the batch number when they were last sent; 0: never */
    uint32_t first, until; /* their range in that batch */
    int losses; /* workers that were lost with the requests being tried */
    int in_row; /* how many individually retried requests lost a worker since the last answered one */
    Unfinished *unfinished; /* of the first unanswered request */
} Execution;

/* Returns the receiver of the next answer. */
static Receiver receiver(const Execution *batch)
{
    uint32_t at = batch->answered;
    bool sent = at >= batch->first && at < batch->until;
    return (Receiver){.request = batch->requests[at],
        .sent = {batch->begun_ns, sent ? batch->number : 0, at - batch->first},
        .unfinished = batch->unfinished,
        .last = batch->answered + 1 == batch->end};
}

/* The request has been answered, or is queued again: return it to tritonserver. */
static void release(Execution *batch, bool success, uint32_t flags)
{
    TRITONBACKEND_Request *request = batch->requests[batch->answered];
    uint64_t end_ns = steady_ns();
    failed(TRITONBACKEND_ModelInstanceReportStatistics(
        batch->proxy->instance, request, success, batch->begun_ns, batch->sent_ns, batch->answered_ns, end_ns));
    failed(TRITONBACKEND_RequestRelease(request, flags));
    unfinished_free(batch->unfinished);
    batch->unfinished = NULL;
}

/* Answer the requests up to `end` with an error; with `names`, each error names its request. */
static void fail_up_to(Execution *batch, uint32_t end, TRITONSERVER_Error_Code code, const char *text, bool names)
{
    batch->sent_ns = batch->sent_ns ? batch->sent_ns : batch->begun_ns;
    batch->answered_ns = steady_ns();
    for (; batch->answered < end; batch->answered++) {
        Receiver to = receiver(batch);
        send_error(batch->proxy, &to, code, text, names);
        release(batch, false, RELEASE_ALL);
    }
}

/* Answer the requests being tried, or all remaining ones, with the error that nobody can serve them. Takes the text
 * over.
 */
static void give_up(Execution *batch, bool whole, char *text)
{
    fail_up_to(batch, whole ? batch->count : batch->end, ERROR_UNAVAILABLE, text, true);
    free(text);
}

static void protocol_fault(Execution *batch)
{
    char *text = texted("model %s: %s", batch->proxy->model->name, batch->proxy->lane->fault);
    drop_lane(batch->proxy);
    give_up(batch, false, text);
}

/* Report an answered batch to tritonserver's statistics: once, or per request if they are retried individually. */
static void report_batch(Execution *batch)
{
    uint64_t rows = 0;
    if (batch->reported)
        return;
    batch->reported = !batch->apart;
    for (uint32_t i = batch->answered; i < batch->end; i++)
        rows += rows_of(batch->proxy->model, batch->requests[i]);
    failed(TRITONBACKEND_ModelInstanceReportBatchStatistics(
        batch->proxy->instance, rows, batch->begun_ns, batch->sent_ns, batch->answered_ns, steady_ns()));
}

/* Pass the worker's answers on. Returns false if it broke the protocol or was lost. */
static bool pass_on(Execution *batch, Reader *answer)
{
    Proxy *proxy = batch->proxy;
    get_array(answer);
    Text tag = get_text(answer);
    int64_t id = get_int(answer);
    bool lent = text_is(tag, BATCH_LENT_NAME), done = lent || text_is(tag, BATCH_DONE_NAME);
    if (answer->malformed || id != (int64_t)proxy->batch || !(done || text_is(tag, BATCH_FAILED_NAME))) {
        snprintf(proxy->lane->fault, sizeof proxy->lane->fault, "the worker answered batch %lu with %.*s %ld",
            proxy->batch, (int)(tag.size < 40 ? tag.size : 40), tag.start, (long)id);
        return false;
    }
    batch->answered_ns = steady_ns();
    if (!done) { /* Triton's own python backend also counts a failed batch: an execution, and failed requests */
        report_batch(batch);
        char *text = text_without_nul(get_text(answer));
        fail_up_to(batch, batch->end, ERROR_INTERNAL, text, !proxy->model->details);
        free(text);
        return true;
    }
    proxy->lane->owes = lent;
    uint32_t responses = get_array(answer);
    if (responses != batch->end - batch->answered) {
        snprintf(proxy->lane->fault, sizeof proxy->lane->fault, "the worker gave %u responses to %u requests",
            responses, batch->end - batch->answered);
        return false;
    }
    report_batch(batch);
    for (; batch->answered < batch->end; batch->answered++) {
        if (lent && batch->unfinished == NULL)
            batch->unfinished = unfinished_new();
        Receiver to = receiver(batch);
        Outcome outcome;
        bool right = pass_response(proxy, &to, answer, &outcome);
        if (proxy->lane->lost)
            return false;
        if (right || outcome.final)
            release(batch, !outcome.failed, outcome.reschedule ? RELEASE_RESCHEDULE : RELEASE_ALL);
        batch->answered += !right && outcome.final;
        if (!right)
            return false;
    }
    lane_give_back(proxy->lane); /* when the last response had nothing to read */
    return true;
}

/* Returns the facts about the requests being tried for the dispatcher's verdict. */
static Loss loss_of(const Execution *batch)
{
    return (Loss){.losses = batch->losses,
        .requests = batch->end - batch->answered,
        .in_row = batch->apart ? batch->in_row + 1 : 0};
}

/* Returns the id of the only request being tried, for free(); NULL if there are several. */
static char *only_name(const Execution *batch)
{
    if (batch->end - batch->answered != 1)
        return NULL;
    Receiver to = receiver(batch);
    char *given = given_name(batch->proxy, to.request), *name = name_of(given, &to.sent);
    free(given);
    return name;
}

/* Pass the batch to the worker and wait for its answer. `given_up`: why nobody will answer it, for free(); with
 * `whole`, this also applies to the rest of the batch.
 */
static LaneState exchange(Execution *batch, Reader *answer, bool *again, char **given_up, bool *whole)
{
    Proxy *proxy = batch->proxy;
    Loss loss = loss_of(batch);
    LaneState state = lane_send(proxy->lane, &proxy->message);
    batch->sent_ns = steady_ns();
    while (state == LANE_OK) {
        state = lane_receive(proxy->lane, answer);
        if (state != LANE_SILENT)
            break;
        double wait_s = 0;
        batch->taken = lane_all_read(proxy->lane);
        loss.request_id = only_name(batch);
        *given_up = judge_overdue(proxy, &loss, batch->taken, &wait_s, again);
        free(loss.request_id);
        *whole = loss.whole;
        if (*given_up || *again)
            return LANE_SILENT;
        lane_set_patience(proxy->lane, wait_s);
        proxy->waited_on = true;
        state = LANE_OK;
    }
    if (state == LANE_OK && proxy->waited_on) {
        proxy->waited_on = false;
        lane_set_patience(proxy->lane, proxy->execution_timeout_s);
    }
    return state;
}

/* A worker was lost with these requests, or hangs in them: retry each individually from now on. `text`: do not retry
 * them.
 */
static void lost(Execution *batch, char *text, bool whole)
{
    batch->in_row += batch->apart;
    if (text) {
        give_up(batch, whole, text);
        return;
    }
    batch->apart = true;
    batch->end = batch->answered + 1;
}

/* The worker did not answer. */
static void unanswered(Execution *batch, LaneState state, char *text, bool whole)
{
    Proxy *proxy = batch->proxy;
    drop_lane(proxy);
    if (state == LANE_CLOSED) {
        batch->losses++;
        Loss loss = loss_of(batch);
        loss.request_id = only_name(batch);
        text = judge_loss(proxy, &loss);
        free(loss.request_id);
        lost(batch, text, loss.whole);
    } else if (state == LANE_SILENT && batch->taken) {
        batch->losses++;
        lost(batch, text, whole);
    } else if (text) {
        give_up(batch, whole, text);
    } /* otherwise it had not begun: it goes to another worker unchanged */
}

/* Let a worker serve the requests being tried. If they are not answered, it was lost: another worker has to. */
static void serve(Execution *batch)
{
    Proxy *proxy = batch->proxy;
    uint32_t count = batch->end - batch->answered;
    Reader answer;
    bool again = false, whole = false;
    char *text = attach(proxy, true);
    if (text) {
        give_up(batch, true, text);
        return;
    }
    text = put_batch(proxy, batch->requests + batch->answered, count, batch->apart, batch->begun_ns, &again);
    if (text) {
        give_up(batch, false, text);
        return;
    }
    if (again) { /* the worker waits for this very batch */
        drop_lane(proxy);
        return;
    }
    batch->number = proxy->batch;
    batch->first = batch->answered;
    batch->until = batch->end;
    LaneState state = exchange(batch, &answer, &again, &text, &whole);
    if (state == LANE_OK && pass_on(batch, &answer)) {
        batch->in_row = 0;
        lane_ask_peer(proxy->lane);
        return;
    }
    if (state == LANE_OK && proxy->lane->lost)
        state = LANE_CLOSED;
    if (state == LANE_OK || state == LANE_FAULT)
        protocol_fault(batch);
    else
        unanswered(batch, state, text, whole);
}

void batch_execute(Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count)
{
    Execution batch = {.proxy = proxy, .requests = requests, .begun_ns = steady_ns()};
    batch.count = batch.end = refuse_wrong(proxy, requests, count);
    while (batch.answered < batch.count) {
        if (batch.answered == batch.end) { /* retry the next one individually: it was lost with the others once */
            batch.end++;
            batch.losses = 1;
        }
        serve(&batch);
    }
    if (proxy->lane)
        idle_begin(&proxy->lane->arena);
}

void batch_refuse(Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count, const char *text)
{
    Execution batch = {.proxy = proxy, .requests = requests, .begun_ns = steady_ns(), .count = count, .end = count};
    fail_up_to(&batch, count, ERROR_UNAVAILABLE, text, true);
}
