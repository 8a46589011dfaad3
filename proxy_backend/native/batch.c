/* One batch of a model that answers each request once: handed to a worker, and to another one if that is lost; tritonserver's
 * thread waits meanwhile.
 */
#define _GNU_SOURCE
#include "proxy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    Proxy *proxy;
    TRITONBACKEND_Request **requests;
    uint32_t count;
    uint32_t answered; /* the first so many have been */
    uint64_t begun_ns, sent_ns, answered_ns;
    int losses;
    Unfinished *unfinished; /* to the first request that has not been answered */
} Execution;

/* Who is to be answered next. */
static Receiver receiver(const Execution *batch)
{
    return (Receiver){
        .request = batch->requests[batch->answered],
        .unfinished = batch->unfinished,
        .last = batch->answered + 1 == batch->count};
}

/* This request has been answered, or is queued again: it belongs to tritonserver again. */
static void release(Execution *batch, bool success, uint32_t flags)
{
    TRITONBACKEND_Request *request = batch->requests[batch->answered];
    uint64_t end_ns = steady_ns();
    failed(TRITONBACKEND_ModelInstanceReportStatistics(batch->proxy->instance, request, success,
        batch->begun_ns, batch->sent_ns, batch->answered_ns, end_ns));
    failed(TRITONBACKEND_RequestRelease(request, flags));
    unfinished_free(batch->unfinished);
    batch->unfinished = NULL;
}

/* Answer all that is left with an error. */
static void fail_rest(Execution *batch, TRITONSERVER_Error_Code code, const char *text)
{
    batch->sent_ns = batch->sent_ns ? batch->sent_ns : batch->begun_ns;
    batch->answered_ns = steady_ns();
    for (; batch->answered < batch->count; batch->answered++) {
        Receiver to = receiver(batch);
        send_error(&to, code, text);
        release(batch, false, RELEASE_ALL);
    }
}

/* Answer all that is left as nobody can serve it; takes the text over. */
static void give_up(Execution *batch, char *text)
{
    fail_rest(batch, ERROR_UNAVAILABLE, text);
    free(text);
}

static void protocol_fault(Execution *batch)
{
    char *text = texted("model %s: %s", batch->proxy->model->name, batch->proxy->lane->fault);
    drop_lane(batch->proxy);
    give_up(batch, text);
}

static void report_batch(Execution *batch)
{
    uint64_t rows = 0;
    for (uint32_t i = 0; i < batch->count; i++)
        rows += rows_of(batch->proxy->model, batch->requests[i]);
    failed(TRITONBACKEND_ModelInstanceReportBatchStatistics(
        batch->proxy->instance, rows, batch->begun_ns, batch->sent_ns, batch->answered_ns, steady_ns()));
}

/* Pass on what the worker has answered. False: it broke the protocol, or was lost. */
static bool pass_on(Execution *batch, Reader *answer)
{
    Proxy *proxy = batch->proxy;
    get_array(answer);
    Text tag = get_text(answer);
    int64_t id = get_int(answer);
    bool lent = text_is(tag, "BatchLent"), done = lent || text_is(tag, "BatchDone");
    if (answer->malformed || id != (int64_t)proxy->batch || !(done || text_is(tag, "BatchFailed"))) {
        snprintf(proxy->lane->fault, sizeof proxy->lane->fault, "the worker answered batch %lu with %.*s %ld",
            proxy->batch, (int)(tag.size < 40 ? tag.size : 40), tag.start, (long)id);
        return false;
    }
    batch->answered_ns = steady_ns();
    if (!done) {
        char *text = text_without_nul(get_text(answer));
        fail_rest(batch, ERROR_INTERNAL, text);
        free(text);
        return true;
    }
    proxy->lane->owes = lent;
    uint32_t responses = get_array(answer);
    if (responses != batch->count - batch->answered) {
        snprintf(proxy->lane->fault, sizeof proxy->lane->fault, "the worker gave %u responses to %u requests",
            responses, batch->count - batch->answered);
        return false;
    }
    if (batch->answered == 0 && batch->unfinished == NULL) /* else a worker was lost, and it has been */
        report_batch(batch);
    for (; batch->answered < batch->count; batch->answered++) {
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
    lane_give_back(proxy->lane); /* where the last response had nothing to read */
    return true;
}

/* Hand the batch to the worker and wait for what it says. `given_up`: why nobody will answer it, for free(). */
static LaneState exchange(Execution *batch, Reader *answer, bool *again, char **given_up)
{
    Proxy *proxy = batch->proxy;
    LaneState state = lane_send(proxy->lane, &proxy->message);
    batch->sent_ns = steady_ns();
    while (state == LANE_OK) {
        state = lane_receive(proxy->lane, answer);
        if (state != LANE_SILENT)
            break;
        double wait_s = 0;
        *given_up = judge_overdue(proxy, lane_all_read(proxy->lane), &wait_s, again);
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

/* Have the batch served by one worker. False: it was lost, another one has to. */
static bool served(Execution *batch)
{
    Proxy *proxy = batch->proxy;
    Reader answer;
    bool again = false;
    char *text = attach(proxy);
    if (text == NULL)
        text = put_batch(proxy, batch->requests + batch->answered, batch->count - batch->answered, &again);
    if (text) {
        give_up(batch, text);
        return true;
    }
    if (again) { /* the worker waits for this very batch */
        drop_lane(proxy);
        return false;
    }
    LaneState state = exchange(batch, &answer, &again, &text);
    if (state == LANE_OK && pass_on(batch, &answer)) {
        lane_ask_peer(proxy->lane);
        return true;
    }
    if (state == LANE_OK && proxy->lane->lost)
        state = LANE_CLOSED;
    if (state == LANE_OK || state == LANE_FAULT) {
        protocol_fault(batch);
        return true;
    }
    drop_lane(proxy);
    if (state == LANE_CLOSED)
        text = judge_loss(proxy, ++batch->losses);
    if (text)
        give_up(batch, text);
    return text != NULL;
}

void batch_execute(Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count)
{
    Execution batch = {.proxy = proxy, .requests = requests, .begun_ns = steady_ns()};
    batch.count = refuse_wrong(proxy, requests, count);
    while (batch.count && !served(&batch))
        ;
}
