#define _GNU_SOURCE
#include "proxy/attachment.h"

#include "base/clock.h"
#include "base/text.h"
#include "wire/protocol.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void put_attach(Buffer *question, Proxy *proxy, const char *lost, bool batch)
{
    put_message(question, ATTACH_NAME, ATTACH_FIELDS);
    put_text_field(question, ATTACH_registration, proxy->model->registration);
    put_text_field(question, ATTACH_instance, proxy->name);
    put_int_field(question, ATTACH_pid, getpid());
    put_text_field(question, ATTACH_lost, lost);
    put_string(question, ATTACH_avoid);
    put_array(question, proxy->avoided);
    buffer_put(question, proxy->avoid.data, proxy->avoid.size);
    put_int_field(question, ATTACH_version, (int64_t)proxy->model->number);
    put_bool_field(question, ATTACH_batch, batch);
    put_int_field(question, ATTACH_protocol, PROTOCOL);
    proxy->avoid.size = 0;
    proxy->avoided = 0;
}

/* Apply the dispatcher's reply. */
static char *attached(Proxy *proxy, const Buffer *reply, char **path)
{
    Reader value;
    *path = reply_text(reply, ATTACHED_lane_path);
    char *worker = reply_text(reply, ATTACHED_worker);
    if (*path == NULL || worker == NULL) {
        free(*path);
        free(worker);
        *path = NULL;
        return texted("model %s: the dispatcher named no worker", proxy->model->name);
    }
    free(proxy->worker);
    proxy->worker = worker;
    proxy->execution_timeout_s = reply_find(reply, ATTACHED_execution_timeout_s, &value) ? get_double(&value) : 0;
    proxy->tracing = reply_find(reply, ATTACHED_tracing, &value) && get_bool(&value);
    return NULL;
}

static void serve_calls(Proxy *proxy, const char *lane_path)
{
    const Model *model = proxy->model;
    calls_serve(&proxy->calls, &(Caller){model->model, model->name, model->endpoint, proxy->name}, lane_path);
}

char *attach(Proxy *proxy, bool batch)
{
    char *lost = NULL, *failure = NULL;
    bool sleeps = false;
    while (proxy->lane == NULL && failure == NULL && !sleeps) {
        Buffer question = {0}, reply = {0};
        char *path = NULL;
        put_attach(&question, proxy, lost, batch);
        /* No time-out: the dispatcher answers as soon as there is a worker, or it has given up. */
        failure = control_ask(proxy->control, &question, &reply, -1);
        if (failure == NULL)
            failure = attached(proxy, &reply, &path);
        sleeps = failure == NULL && !batch && path[0] == 0; /* the first batch asks again */
        if (failure == NULL && !sleeps)
            proxy->lane = lane_connect(path, &failure); /* a worker may have ended since the dispatcher answered */
        if (proxy->lane)
            serve_calls(proxy, path);
        free(lost);
        lost = proxy->worker ? strdup(proxy->worker) : NULL;
        free(path);
        buffer_free(&question);
        buffer_free(&reply);
    }
    free(lost);
    if (proxy->lane)
        lane_set_patience(proxy->lane, proxy->execution_timeout_s);
    return failure;
}

void drop_lane(Proxy *proxy)
{
    if (proxy->lane)
        calls_retire(&proxy->calls);
    lane_close(proxy->lane);
    proxy->lane = NULL;
    proxy->waited_on = false;
}

void detach(Proxy *proxy)
{
    Buffer message = {0};
    drop_lane(proxy);
    calls_end(&proxy->calls);
    put_message(&message, DETACH_NAME, DETACH_FIELDS);
    put_text_field(&message, DETACH_registration, proxy->model->registration);
    put_text_field(&message, DETACH_instance, proxy->name);
    control_tell(proxy->control, &message);
    buffer_free(&message);
}

/* Returns the text of a final verdict; NULL: the verdict is another one, in `action`. */
static char *verdict(Proxy *proxy, const Buffer *question, Buffer *reply, char **action, bool *whole)
{
    Reader value;
    char *failure = control_ask(proxy->control, question, reply, -1);
    *whole = failure || (reply_find(reply, VERDICT_whole, &value) && get_bool(&value));
    *action = failure ? NULL : reply_text(reply, VERDICT_action);
    if (failure == NULL && *action == NULL)
        failure = texted("model %s: the dispatcher sent no verdict", proxy->model->name);
    if (failure == NULL && strcmp(*action, "fail") == 0) {
        failure = reply_text(reply, VERDICT_text);
        if (failure == NULL) /* otherwise it would be retried forever */
            failure = texted("model %s: its worker is lost", proxy->model->name);
    }
    return failure;
}

/* Begin a question about a batch; both kinds have the same fields. */
static void put_loss(Buffer *question, Proxy *proxy, const char *name, uint32_t fields, const Loss *loss)
{
    put_message(question, name, fields);
    put_text_field(question, LANE_LOST_registration, proxy->model->registration);
    put_text_field(question, LANE_LOST_worker, proxy->worker);
    put_int_field(question, LANE_LOST_losses, loss->losses);
    put_bool_field(question, LANE_LOST_final, loss->final);
    put_int_field(question, LANE_LOST_requests, loss->requests);
    put_int_field(question, LANE_LOST_in_row, loss->in_row);
    put_text_field(question, LANE_LOST_request_id, loss->request_id ? loss->request_id : "");
}

char *judge_loss(Proxy *proxy, Loss *loss)
{
    Buffer question = {0}, reply = {0};
    char *action;
    put_loss(&question, proxy, LANE_LOST_NAME, LANE_LOST_FIELDS, loss);
    char *text = verdict(proxy, &question, &reply, &action, &loss->whole);
    free(action);
    buffer_free(&question);
    buffer_free(&reply);
    return text;
}

char *judge_overdue(Proxy *proxy, Loss *loss, bool taken, double *wait_s, bool *retry)
{
    Buffer question = {0}, reply = {0};
    char *action;
    Reader value;
    if (!taken)
        loss->taken_ns = 0;
    else if (loss->taken_ns == 0)
        loss->taken_ns = steady_ns();
    put_loss(&question, proxy, BATCH_OVERDUE_NAME, BATCH_OVERDUE_FIELDS, loss);
    put_bool_field(&question, BATCH_OVERDUE_taken, taken);
    put_int_field(&question, BATCH_OVERDUE_taken_ms, taken ? (int64_t)((steady_ns() - loss->taken_ns) / 1000000) : 0);
    char *text = verdict(proxy, &question, &reply, &action, &loss->whole);
    *retry = text == NULL && strcmp(action, "wait") != 0;
    if (text == NULL && !*retry)
        *wait_s = reply_find(&reply, VERDICT_wait_s, &value) ? get_double(&value) : 0;
    free(action);
    buffer_free(&question);
    buffer_free(&reply);
    return text;
}
