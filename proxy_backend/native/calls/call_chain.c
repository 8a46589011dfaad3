#define _GNU_SOURCE
#include "calls/call_chain.h"

#include "base/json.h"
#include "base/text.h"
#include "calls/sealed_chain.h"
#include "control/control.h"
#include "wire/protocol.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The maximum number of models that wait for each other. */
enum { MOST_DEEP = 16, ASK_MS = 10000 };

/* Returns the buffer as a text for free(), NULL without memory. Takes the buffer. */
static char *finished(Buffer *buffer)
{
    buffer_put(buffer, "", 1);
    char *text = buffer->failed ? NULL : (char *)buffer->data;
    if (text == NULL)
        buffer_free(buffer);
    return text;
}

char *chain_sealed(const CallMessage *call)
{
    Buffer json = {0}, sealed = {0};
    Links links = chain_links(call);
    char seal[SEAL + 1];
    buffer_puts(&json, "[");
    while (chain_next(&links)) {
        buffer_puts(&json, json.size > 1 ? ",[" : "[");
        json_put_string(&json, links.model.start, links.model.size);
        buffer_puts(&json, ",");
        json_put_string(&json, links.worker.start, links.worker.size);
        buffer_puts(&json, "]");
    }
    buffer_puts(&json, "]");
    if (json.failed) {
        buffer_free(&json);
        return NULL;
    }
    chain_seal((const char *)json.data, json.size, seal);
    buffer_put(&sealed, seal, SEAL);
    buffer_put(&sealed, json.data, json.size);
    buffer_free(&json);
    return finished(&sealed);
}

static char *too_deep(const CallMessage *call)
{
    Buffer text = {0};
    Links links = chain_links(call);
    char *begun = texted("calls are nested more than %d deep: ", MOST_DEEP);
    buffer_puts(&text, begun);
    free(begun);
    while (chain_next(&links)) {
        buffer_put(&text, links.model.start, links.model.size);
        buffer_puts(&text, " → ");
    }
    buffer_put(&text, call->model.start, call->model.size);
    char *whole = finished(&text);
    return whole ? whole : texted("calls are nested too deep");
}

/* Ask the dispatcher a rare question on a connection of its own. Returns false if it cannot be asked. */
static bool ask(const char *endpoint, const Buffer *question, Buffer *reply, const char *type)
{
    Control *control = control_new(endpoint);
    char *failure = control ? control_ask(control, question, reply, ASK_MS) : texted("no dispatcher");
    bool answered = failure == NULL && reply_is(reply, type);
    free(failure);
    control_free(control);
    return answered;
}

static void put_may_call(Buffer *question, const CallMessage *call)
{
    Buffer models = {0}, workers = {0};
    uint32_t depth = 0, occupied = 0;
    Links links = chain_links(call);
    for (; chain_next(&links); depth++) {
        put_text(&models, links.model.start, links.model.size);
        if (links.worker.size) {
            put_text(&workers, links.worker.start, links.worker.size);
            occupied++;
        }
    }
    put_message(question, MAY_CALL_NAME, MAY_CALL_FIELDS);
    put_string(question, MAY_CALL_model);
    put_text(question, call->model.start, call->model.size);
    put_string(question, MAY_CALL_chain);
    put_array(question, depth);
    buffer_put(question, models.data, models.size);
    put_string(question, MAY_CALL_workers);
    put_array(question, occupied);
    buffer_put(question, workers.data, workers.size);
    question->failed |= models.failed || workers.failed;
    buffer_free(&models);
    buffer_free(&workers);
}

char *chain_refused(const CallMessage *call, const char *endpoint)
{
    uint32_t depth = 0;
    bool circular = false;
    Links links = chain_links(call);
    for (; chain_next(&links); depth++)
        circular |= links.worker.size && links.model.size == call->model.size &&
            memcmp(links.model.start, call->model.start, call->model.size) == 0;
    if (depth > MOST_DEEP)
        return too_deep(call);
    if (!circular)
        return NULL;
    Buffer question = {0}, reply = {0};
    put_may_call(&question, call);
    char *text = ask(endpoint, &question, &reply, VERDICT_NAME) ? reply_text(&reply, VERDICT_text) : NULL;
    buffer_free(&question);
    buffer_free(&reply);
    if (text && *text == 0) {
        free(text);
        text = NULL;
    }
    return text;
}

char *chain_stuck(
    const char *endpoint, const char *proxy, const char *worker, const Buffer *models, uint32_t count, Buffer *reply)
{
    Buffer question = {0};
    put_message(&question, CALLS_WAIT_NAME, CALLS_WAIT_FIELDS);
    put_int_field(&question, CALLS_WAIT_pid, getpid());
    put_text_field(&question, CALLS_WAIT_worker, worker);
    put_string(&question, CALLS_WAIT_models);
    put_array(&question, count);
    buffer_put(&question, models->data, models->size);
    put_text_field(&question, CALLS_WAIT_proxy, proxy);
    question.failed |= models->failed;
    char *text = ask(endpoint, &question, reply, STUCK_CALLS_NAME) ? reply_text(reply, STUCK_CALLS_text) : NULL;
    buffer_free(&question);
    return text;
}

bool chain_comes(const CallMessage *call, const char *endpoint)
{
    Buffer question = {0}, reply = {0};
    Reader ready;
    put_message(&question, ASK_READINESS_NAME, ASK_READINESS_FIELDS);
    put_string(&question, ASK_READINESS_name);
    put_text(&question, call->model.start, call->model.size);
    put_text_field(&question, ASK_READINESS_version, "");
    bool comes = ask(endpoint, &question, &reply, READINESS_NAME) && reply_find(&reply, READINESS_ready, &ready) &&
        get_bool(&ready);
    buffer_free(&question);
    buffer_free(&reply);
    return comes;
}
