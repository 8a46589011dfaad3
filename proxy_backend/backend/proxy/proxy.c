#define _GNU_SOURCE
#include "proxy/proxy.h"

#include "common/clock.h"
#include "base/strings.h"
#include "wire/protocol.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void put_attach(Buffer *request, Proxy *proxy, const char *lost, bool batch)
{
    message_begin(request, ATTACH_NAME, ATTACH_FIELDS);
    message_put_text(request, ATTACH_registration, proxy->model->registration);
    message_put_text(request, ATTACH_instance, proxy->name);
    message_put_int(request, ATTACH_pid, getpid());
    message_put_text(request, ATTACH_lost, lost);
    msgpack_put_string(request, ATTACH_avoid);
    msgpack_put_array(request, proxy->avoid_count);
    buffer_put(request, proxy->avoid.data, proxy->avoid.size);
    message_put_int(request, ATTACH_version, (int64_t)proxy->model->number);
    message_put_bool(request, ATTACH_batch, batch);
    message_put_int(request, ATTACH_protocol, PROTOCOL);
    proxy->avoid.size = 0;
    proxy->avoid_count = 0;
}

/* Store the contents of the dispatcher's reply. */
static char *handle_attached(Proxy *proxy, const Buffer *reply, char **path)
{
    Reader value;
    *path = reply_text(reply, ATTACHED_lane_path);
    char *worker = reply_text(reply, ATTACHED_worker);
    if (*path == NULL || worker == NULL) {
        free(*path);
        free(worker);
        *path = NULL;
        return strdup_printf("model %s: the dispatcher did not assign a worker", proxy->model->name);
    }
    free(proxy->worker);
    proxy->worker = worker;
    proxy->execution_timeout_s =
        reply_get(reply, ATTACHED_execution_timeout_s, &value) ? msgpack_get_double(&value) : 0;
    proxy->tracing = reply_get(reply, ATTACHED_tracing, &value) && msgpack_get_bool(&value);
    return NULL;
}

static void serve_calls(Proxy *proxy, const char *lane_path)
{
    const Model *model = proxy->model;
    calls_serve(&proxy->calls, &(Caller){model->model, model->name, model->endpoint, proxy->name}, lane_path);
}

char *proxy_attach(Proxy *proxy, bool batch)
{
    char *lost = NULL, *failure = NULL;
    bool is_suspended = false;
    while (proxy->lane == NULL && failure == NULL && !is_suspended) {
        Buffer request = {0}, reply = {0};
        char *path = NULL;
        put_attach(&request, proxy, lost, batch);
        /* No time-out: the dispatcher answers as soon as there is a worker, or when it gives up. */
        failure = control_request(proxy->control, &request, &reply, -1);
        if (failure == NULL)
            failure = handle_attached(proxy, &reply, &path);
        is_suspended = failure == NULL && !batch && path[0] == 0; /* The first batch attaches again. */
        if (failure == NULL && !is_suspended)
            /* The connection fails if the worker has ended since the dispatcher answered. */
            proxy->lane = lane_connect(path, &failure);
        if (proxy->lane) {
            lane_set_timeout(proxy->lane, proxy->execution_timeout_s);
            serve_calls(proxy, path);
        }
        free(lost);
        lost = proxy->worker ? strdup(proxy->worker) : NULL;
        free(path);
        buffer_free(&request);
        buffer_free(&reply);
    }
    free(lost);
    return failure;
}

void proxy_drop_lane(Proxy *proxy)
{
    if (proxy->lane)
        calls_retire(&proxy->calls);
    lane_close(proxy->lane);
    proxy->lane = NULL;
    proxy->has_dispatcher_timeout = false;
}

/* Tell the dispatcher that the proxy ends (Detach). */
static void proxy_detach(Proxy *proxy)
{
    Buffer message = {0};
    proxy_drop_lane(proxy);
    calls_end(&proxy->calls);
    message_begin(&message, DETACH_NAME, DETACH_FIELDS);
    message_put_text(&message, DETACH_registration, proxy->model->registration);
    message_put_text(&message, DETACH_instance, proxy->name);
    control_send(proxy->control, &message);
    buffer_free(&message);
}

/* Send a report about a lost or overdue batch. Returns the error to answer if the verdict is final, otherwise NULL
 * with the verdict in `action`.
 */
static char *request_verdict(Proxy *proxy, const Buffer *request, Buffer *reply, char **action, bool *fails_rest)
{
    Reader value;
    char *failure = control_request(proxy->control, request, reply, -1);
    *fails_rest = failure || (reply_get(reply, VERDICT_fails_rest, &value) && msgpack_get_bool(&value));
    *action = failure ? NULL : reply_text(reply, VERDICT_action);
    if (failure == NULL && *action == NULL)
        failure = strdup_printf("model %s: the dispatcher sent no verdict", proxy->model->name);
    if (failure == NULL && strcmp(*action, "fail") == 0) {
        failure = reply_text(reply, VERDICT_text);
        if (failure == NULL) /* Without this error, the batch would be retried forever. */
            failure = strdup_printf("model %s: its worker is lost", proxy->model->name);
    }
    return failure;
}

/* Begin a report about a batch. Both kinds of reports have the same fields. */
static void put_loss_report(Buffer *request, Proxy *proxy, const char *name, uint32_t fields, const LossReport *loss)
{
    message_begin(request, name, fields);
    message_put_text(request, LANE_LOST_registration, proxy->model->registration);
    message_put_text(request, LANE_LOST_worker, proxy->worker);
    message_put_int(request, LANE_LOST_lost_workers, loss->lost_workers);
    message_put_bool(request, LANE_LOST_final, loss->is_final);
    message_put_int(request, LANE_LOST_requests, loss->requests);
    message_put_int(request, LANE_LOST_consecutive_losses, loss->consecutive_losses);
    message_put_text(request, LANE_LOST_request_id, loss->request_id ? loss->request_id : "");
}

char *proxy_report_loss(Proxy *proxy, LossReport *loss)
{
    Buffer request = {0}, reply = {0};
    char *action;
    put_loss_report(&request, proxy, LANE_LOST_NAME, LANE_LOST_FIELDS, loss);
    char *text = request_verdict(proxy, &request, &reply, &action, &loss->fails_rest);
    free(action);
    buffer_free(&request);
    buffer_free(&reply);
    return text;
}

char *proxy_report_overdue(Proxy *proxy, LossReport *loss, bool was_read, double *wait_s, bool *retry)
{
    Buffer request = {0}, reply = {0};
    char *action;
    Reader value;
    if (!was_read)
        loss->read_ns = 0;
    else if (loss->read_ns == 0)
        loss->read_ns = clock_ns();
    put_loss_report(&request, proxy, BATCH_OVERDUE_NAME, BATCH_OVERDUE_FIELDS, loss);
    message_put_bool(&request, BATCH_OVERDUE_was_read, was_read);
    message_put_int(&request, BATCH_OVERDUE_read_ms, was_read ? (int64_t)((clock_ns() - loss->read_ns) / 1000000) : 0);
    char *text = request_verdict(proxy, &request, &reply, &action, &loss->fails_rest);
    *retry = text == NULL && strcmp(action, "wait") != 0;
    if (text == NULL && !*retry)
        *wait_s = reply_get(&reply, VERDICT_wait_s, &value) ? msgpack_get_double(&value) : 0;
    free(action);
    buffer_free(&request);
    buffer_free(&reply);
    return text;
}

void proxy_free(Proxy *proxy)
{
    if (proxy == NULL)
        return;
    proxy_drop_lane(proxy);
    calls_end(&proxy->calls);
    control_free(proxy->control);
    buffer_free(&proxy->message);
    buffer_free(&proxy->avoid);
    free(proxy->worker);
    free(proxy->name);
    model_unref(proxy->model);
    free(proxy);
}

void proxy_end(Proxy *proxy)
{
    /* A proxy without a name was created by worker_lost.c, and the dispatcher does not know it. */
    if (proxy->control && proxy->name)
        proxy_detach(proxy);
    proxy_free(proxy);
}
