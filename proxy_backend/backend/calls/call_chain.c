#define _GNU_SOURCE
#include "calls/call_chain.h"

#include "base/json.h"
#include "base/sha256.h"
#include "base/strings.h"
#include "common/json_writer.h"
#include "control/control.h"
#include "wire/msgpack.h"
#include "wire/protocol.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Compute the seal of an encoded chain, in hexadecimal. The dispatcher generated the key and passed it in
 * tritonserver's environment.
 */
static void chain_seal_compute(const char *encoded, size_t size, char seal[SEAL + 1])
{
    static const char hexadecimal[] = "0123456789abcdef";
    const char *key = getenv(KEY_VARIABLE);
    uint8_t digest[SHA256_DIGEST];
    hmac_sha256(key ? key : "", encoded, size, digest);
    for (int i = 0; i < SEAL; i++)
        seal[i] = hexadecimal[digest[i / 2] >> (i % 2 ? 0 : 4) & 15];
    seal[SEAL] = 0;
}

bool chain_seal_is_valid(const char *value)
{
    char seal[SEAL + 1];
    unsigned different = 0;
    size_t size = strlen(value);
    if (size < SEAL)
        return false;
    chain_seal_compute(value + SEAL, size - SEAL, seal);
    for (int i = 0; i < SEAL; i++) /* Compare in constant time. */
        different |= (unsigned)(seal[i] ^ value[i]);
    return different == 0;
}

bool chain_has_worker(const char *value, const char *worker, Buffer *waiting, uint32_t *count)
{
    Json chain = {value + SEAL, value + strlen(value)};
    JsonMember link, part;
    bool found = false;
    for (bool more = json_first_element(chain, &link); more; more = json_next_element(chain, &link)) {
        char *name = NULL; /* Each link is [model, worker]. */
        if (json_first_element(link.value, &part) && json_next_element(link.value, &part))
            name = json_string(part.value);
        if (name && *name) {
            found |= strcmp(name, worker) == 0;
            msgpack_put_string(waiting, name);
            ++*count;
        }
        free(name);
    }
    return found;
}

/* Maximum depth of nested calls, and time-out of a request to the dispatcher. */
enum { MAX_CHAIN_DEPTH = 16, REQUEST_TIMEOUT_MS = 10000 };

char *chain_encode(const CallMessage *call)
{
    Buffer json = {0}, sealed = {0};
    Links links = chain_links(call);
    char seal[SEAL + 1];
    buffer_put_string(&json, "[");
    while (chain_next(&links)) {
        buffer_put_string(&json, json.size > 1 ? ",[" : "[");
        json_put_sanitized(&json, links.model);
        buffer_put_string(&json, ",");
        json_put_sanitized(&json, links.worker);
        buffer_put_string(&json, "]");
    }
    buffer_put_string(&json, "]");
    if (json.failed) {
        buffer_free(&json);
        return NULL;
    }
    chain_seal_compute(json.data, json.size, seal);
    buffer_put(&sealed, seal, SEAL);
    buffer_put(&sealed, json.data, json.size);
    buffer_free(&json);
    return buffer_take(&sealed);
}

static char *too_deep_error(const CallMessage *call)
{
    Buffer text = {0};
    Links links = chain_links(call);
    char *begun = strdup_printf("calls are nested more than %d deep: ", MAX_CHAIN_DEPTH);
    buffer_put_string(&text, begun);
    free(begun);
    while (chain_next(&links)) {
        buffer_put_slice(&text, links.model);
        buffer_put_string(&text, " → ");
    }
    buffer_put_slice(&text, call->model);
    char *whole = buffer_take(&text);
    return whole ? whole : strdup_printf("calls are nested too deep");
}

/* Send a rare request to the dispatcher on a separate connection. Returns false if the dispatcher does not answer. */
static bool request_dispatcher(const char *endpoint, const Buffer *request, Buffer *reply, const char *type)
{
    Control *control = control_new(endpoint);
    char *failure =
        control ? control_request(control, request, reply, REQUEST_TIMEOUT_MS) : strdup_printf("no dispatcher");
    bool answered = failure == NULL && reply_is(reply, type);
    free(failure);
    control_free(control);
    return answered;
}

static void put_may_call(Buffer *request, const CallMessage *call)
{
    Buffer models = {0}, workers = {0};
    uint32_t depth = 0, blocks_worker = 0;
    Links links = chain_links(call);
    for (; chain_next(&links); depth++) {
        msgpack_put_text(&models, links.model.start, links.model.size);
        if (links.worker.size) {
            msgpack_put_text(&workers, links.worker.start, links.worker.size);
            blocks_worker++;
        }
    }
    message_begin(request, MAY_CALL_NAME, MAY_CALL_FIELDS);
    msgpack_put_string(request, MAY_CALL_model);
    msgpack_put_text(request, call->model.start, call->model.size);
    msgpack_put_string(request, MAY_CALL_chain);
    msgpack_put_array(request, depth);
    buffer_put(request, models.data, models.size);
    msgpack_put_string(request, MAY_CALL_workers);
    msgpack_put_array(request, blocks_worker);
    buffer_put(request, workers.data, workers.size);
    request->failed |= models.failed || workers.failed;
    buffer_free(&models);
    buffer_free(&workers);
}

char *chain_check(const CallMessage *call, const char *endpoint)
{
    uint32_t depth = 0;
    bool circular = false;
    Links links = chain_links(call);
    for (; chain_next(&links); depth++)
        circular |= links.worker.size && links.model.size == call->model.size &&
            memcmp(links.model.start, call->model.start, call->model.size) == 0;
    if (depth > MAX_CHAIN_DEPTH)
        return too_deep_error(call);
    if (!circular)
        return NULL;
    Buffer request = {0}, reply = {0};
    put_may_call(&request, call);
    char *text = request_dispatcher(endpoint, &request, &reply, VERDICT_NAME) ? reply_text(&reply, VERDICT_text) : NULL;
    buffer_free(&request);
    buffer_free(&reply);
    if (text && *text == 0) {
        free(text);
        text = NULL;
    }
    return text;
}

char *chain_report_waiting(
    const char *endpoint, const char *proxy, const char *worker, const Buffer *models, uint32_t count, Buffer *reply)
{
    Buffer request = {0};
    message_begin(&request, CALLS_WAIT_NAME, CALLS_WAIT_FIELDS);
    message_put_int(&request, CALLS_WAIT_pid, getpid());
    message_put_text(&request, CALLS_WAIT_worker, worker);
    msgpack_put_string(&request, CALLS_WAIT_models);
    msgpack_put_array(&request, count);
    buffer_put(&request, models->data, models->size);
    message_put_text(&request, CALLS_WAIT_proxy, proxy);
    request.failed |= models->failed;
    char *text =
        request_dispatcher(endpoint, &request, reply, STUCK_CALLS_NAME) ? reply_text(reply, STUCK_CALLS_text) : NULL;
    buffer_free(&request);
    return text;
}

bool chain_load_model(const CallMessage *call, const char *endpoint)
{
    Buffer request = {0}, reply = {0};
    Reader ready;
    message_begin(&request, ASK_READINESS_NAME, ASK_READINESS_FIELDS);
    msgpack_put_string(&request, ASK_READINESS_name);
    msgpack_put_text(&request, call->model.start, call->model.size);
    message_put_text(&request, ASK_READINESS_version, "");
    bool is_loaded = request_dispatcher(endpoint, &request, &reply, READINESS_NAME) &&
        reply_get(&reply, READINESS_ready, &ready) && msgpack_get_bool(&ready);
    buffer_free(&request);
    buffer_free(&reply);
    return is_loaded;
}
