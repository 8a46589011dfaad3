/* Written by scripts/generate from the messages of pytriton/_protocol: do not edit. */
/* clang-format off */
#include "wire/declarations.h"

#include <stddef.h>

static const Field Announce_fields[] = {
    {"memory", true, {.kind = SHAPE_INT}},
};
static const Declared Announce = {"Announce", false, 1, Announce_fields};

static const Shape TensorRef_shape_item = {.kind = SHAPE_INT};
static const Field TensorRef_fields[] = {
    {"name", true, {.kind = SHAPE_TEXT}},
    {"datatype", true, {.kind = SHAPE_TEXT}},
    {"shape", true, {.kind = SHAPE_LIST, .item = &TensorRef_shape_item}},
    {"memory", true, {.kind = SHAPE_INT}},
    {"offset", true, {.kind = SHAPE_INT}},
    {"nbytes", true, {.kind = SHAPE_INT}},
};
static const Declared TensorRef = {NULL, false, 6, TensorRef_fields};

static const Field RequestDetails_fields[] = {
    {"correlation_id", false, {.kind = SHAPE_INT_OR_TEXT}},
    {"flags", false, {.kind = SHAPE_INT}},
    {"timeout", false, {.kind = SHAPE_INT}},
    {"trace", false, {.kind = SHAPE_TEXT, .optional = true}},
};
static const Declared RequestDetails = {NULL, false, 4, RequestDetails_fields};

static const Shape RequestRef_inputs_item = {.kind = SHAPE_STRUCT, .declared = &TensorRef};
static const Shape RequestRef_requested_item = {.kind = SHAPE_TEXT};
static const Field RequestRef_fields[] = {
    {"inputs", true, {.kind = SHAPE_LIST, .item = &RequestRef_inputs_item}},
    {"parameters", true, {.kind = SHAPE_TEXT}},
    {"requested", true, {.kind = SHAPE_LIST, .item = &RequestRef_requested_item}},
    {"request_id", false, {.kind = SHAPE_TEXT}},
    {"details", false, {.kind = SHAPE_STRUCT, .optional = true, .declared = &RequestDetails}},
};
static const Declared RequestRef = {NULL, false, 5, RequestRef_fields};

static const Shape BatchTrace_contexts_item = {.kind = SHAPE_TEXT};
static const Field BatchTrace_fields[] = {
    {"begun_ns", true, {.kind = SHAPE_INT}},
    {"contexts", true, {.kind = SHAPE_LIST, .item = &BatchTrace_contexts_item}},
};
static const Declared BatchTrace = {NULL, false, 2, BatchTrace_fields};

static const Shape Batch_requests_item = {.kind = SHAPE_STRUCT, .declared = &RequestRef};
static const Field Batch_fields[] = {
    {"id", true, {.kind = SHAPE_INT}},
    {"requests", true, {.kind = SHAPE_LIST, .item = &Batch_requests_item}},
    {"trace", false, {.kind = SHAPE_STRUCT, .optional = true, .declared = &BatchTrace}},
    {"reads", false, {.kind = SHAPE_BOOL}},
    {"alone", false, {.kind = SHAPE_BOOL}},
    {"taken_ns", false, {.kind = SHAPE_INT}},
    {"rows", false, {.kind = SHAPE_INT}},
};
static const Declared Batch = {"Batch", false, 7, Batch_fields};

static const Field ResponseDetails_fields[] = {
    {"code", false, {.kind = SHAPE_TEXT}},
    {"parameters", false, {.kind = SHAPE_TEXT}},
    {"final", false, {.kind = SHAPE_BOOL}},
    {"empty", false, {.kind = SHAPE_BOOL}},
    {"reschedule", false, {.kind = SHAPE_BOOL}},
};
static const Declared ResponseDetails = {NULL, false, 5, ResponseDetails_fields};

static const Shape ResponseRef_outputs_item = {.kind = SHAPE_STRUCT, .declared = &TensorRef};
static const Field ResponseRef_fields[] = {
    {"outputs", true, {.kind = SHAPE_LIST, .item = &ResponseRef_outputs_item}},
    {"error", false, {.kind = SHAPE_TEXT, .optional = true}},
    {"details", false, {.kind = SHAPE_STRUCT, .optional = true, .declared = &ResponseDetails}},
};
static const Declared ResponseRef = {NULL, false, 3, ResponseRef_fields};

static const Shape BatchDone_responses_item = {.kind = SHAPE_STRUCT, .declared = &ResponseRef};
static const Field BatchDone_fields[] = {
    {"id", true, {.kind = SHAPE_INT}},
    {"responses", true, {.kind = SHAPE_LIST, .item = &BatchDone_responses_item}},
};
static const Declared BatchDone = {"BatchDone", false, 2, BatchDone_fields};

static const Shape BatchLent_responses_item = {.kind = SHAPE_STRUCT, .declared = &ResponseRef};
static const Field BatchLent_fields[] = {
    {"id", true, {.kind = SHAPE_INT}},
    {"responses", true, {.kind = SHAPE_LIST, .item = &BatchLent_responses_item}},
};
static const Declared BatchLent = {"BatchLent", false, 2, BatchLent_fields};

static const Field BatchFailed_fields[] = {
    {"id", true, {.kind = SHAPE_INT}},
    {"text", true, {.kind = SHAPE_TEXT}},
};
static const Declared BatchFailed = {"BatchFailed", false, 2, BatchFailed_fields};

static const Shape BatchPart_responses_item = {.kind = SHAPE_STRUCT, .optional = true, .declared = &ResponseRef};
static const Field BatchPart_fields[] = {
    {"id", true, {.kind = SHAPE_INT}},
    {"responses", true, {.kind = SHAPE_LIST, .item = &BatchPart_responses_item}},
};
static const Declared BatchPart = {"BatchPart", false, 2, BatchPart_fields};

static const Shape PartRef_responses_item = {.kind = SHAPE_STRUCT, .optional = true, .declared = &ResponseRef};
static const Field PartRef_fields[] = {
    {"id", true, {.kind = SHAPE_INT}},
    {"responses", true, {.kind = SHAPE_LIST, .item = &PartRef_responses_item}},
};
static const Declared PartRef = {NULL, false, 2, PartRef_fields};

static const Shape BatchParts_parts_item = {.kind = SHAPE_STRUCT, .declared = &PartRef};
static const Field BatchParts_fields[] = {
    {"parts", true, {.kind = SHAPE_LIST, .item = &BatchParts_parts_item}},
};
static const Declared BatchParts = {"BatchParts", false, 1, BatchParts_fields};

static const Shape BatchTexts_ids_item = {.kind = SHAPE_INT};
static const Shape BatchTexts_texts_item = {.kind = SHAPE_TEXT};
static const Field BatchTexts_fields[] = {
    {"output", true, {.kind = SHAPE_TEXT}},
    {"ids", true, {.kind = SHAPE_LIST, .item = &BatchTexts_ids_item}},
    {"texts", true, {.kind = SHAPE_LIST, .item = &BatchTexts_texts_item}},
};
static const Declared BatchTexts = {"BatchTexts", false, 3, BatchTexts_fields};

static const Field BatchBegun_fields[] = {
    {"id", true, {.kind = SHAPE_INT}},
};
static const Declared BatchBegun = {"BatchBegun", false, 1, BatchBegun_fields};

static const Field Room_fields[] = {
    {"batches", true, {.kind = SHAPE_INT}},
};
static const Declared Room = {"Room", false, 1, Room_fields};

static const Shape BatchReturned_reschedule_item = {.kind = SHAPE_INT};
static const Field BatchReturned_fields[] = {
    {"id", true, {.kind = SHAPE_INT}},
    {"reschedule", false, {.kind = SHAPE_LIST, .item = &BatchReturned_reschedule_item}},
};
static const Declared BatchReturned = {"BatchReturned", false, 2, BatchReturned_fields};

static const Shape MetricUpdate_buckets_item = {.kind = SHAPE_FLOAT};
static const Field MetricUpdate_fields[] = {
    {"family", true, {.kind = SHAPE_TEXT}},
    {"description", true, {.kind = SHAPE_TEXT}},
    {"kind", true, {.kind = SHAPE_TEXT}},
    {"labels", true, {.kind = SHAPE_TEXTS}},
    {"buckets", false, {.kind = SHAPE_LIST, .optional = true, .item = &MetricUpdate_buckets_item}},
    {"change", false, {.kind = SHAPE_TEXT}},
    {"value", false, {.kind = SHAPE_FLOAT}},
};
static const Declared MetricUpdate = {NULL, false, 7, MetricUpdate_fields};

static const Shape Metrics_updates_item = {.kind = SHAPE_STRUCT, .declared = &MetricUpdate};
static const Field Metrics_fields[] = {
    {"updates", true, {.kind = SHAPE_LIST, .item = &Metrics_updates_item}},
};
static const Declared Metrics = {"Metrics", false, 1, Metrics_fields};

static const Field Credit_fields[] = {
    {"parts", true, {.kind = SHAPE_INT}},
};
static const Declared Credit = {"Credit", false, 1, Credit_fields};

static const Field Cancel_fields[] = {
    {"id", true, {.kind = SHAPE_INT}},
    {"request", true, {.kind = SHAPE_INT}},
};
static const Declared Cancel = {"Cancel", false, 2, Cancel_fields};

static const Field Hold_fields[] = {
    {"id", true, {.kind = SHAPE_INT}},
    {"request", true, {.kind = SHAPE_INT}},
};
static const Declared Hold = {"Hold", false, 2, Hold_fields};

static const Field Go_fields[] = {
    {"id", true, {.kind = SHAPE_INT}},
    {"request", true, {.kind = SHAPE_INT}},
};
static const Declared Go = {"Go", false, 2, Go_fields};

static const Field Spilled_fields[] = {
    {"offset", true, {.kind = SHAPE_INT}},
    {"nbytes", true, {.kind = SHAPE_INT}},
};
static const Declared Spilled = {"Spilled", false, 2, Spilled_fields};

static const Field Link_fields[] = {
    {"model", true, {.kind = SHAPE_TEXT}},
    {"worker", true, {.kind = SHAPE_TEXT}},
};
static const Declared Link = {NULL, false, 2, Link_fields};

static const Shape Call_inputs_item = {.kind = SHAPE_STRUCT, .declared = &TensorRef};
static const Shape Call_outputs_item = {.kind = SHAPE_TEXT};
static const Shape Call_chain_item = {.kind = SHAPE_STRUCT, .declared = &Link};
static const Field Call_fields[] = {
    {"id", true, {.kind = SHAPE_INT}},
    {"model", true, {.kind = SHAPE_TEXT}},
    {"version", true, {.kind = SHAPE_INT}},
    {"inputs", true, {.kind = SHAPE_LIST, .item = &Call_inputs_item}},
    {"outputs", true, {.kind = SHAPE_LIST, .item = &Call_outputs_item}},
    {"parameters", true, {.kind = SHAPE_TEXT}},
    {"request_id", true, {.kind = SHAPE_TEXT}},
    {"correlation_id", true, {.kind = SHAPE_INT_OR_TEXT}},
    {"flags", true, {.kind = SHAPE_INT}},
    {"timeout_us", true, {.kind = SHAPE_INT}},
    {"stream", true, {.kind = SHAPE_BOOL}},
    {"chain", true, {.kind = SHAPE_LIST, .item = &Call_chain_item}},
};
static const Declared Call = {"Call", false, 12, Call_fields};

static const Field CallDropped_fields[] = {
    {"id", true, {.kind = SHAPE_INT}},
};
static const Declared CallDropped = {"CallDropped", false, 1, CallDropped_fields};

static const Field CallCancelled_fields[] = {
    {"id", true, {.kind = SHAPE_INT}},
};
static const Declared CallCancelled = {"CallCancelled", false, 1, CallCancelled_fields};

static const Field AnswerRead_fields[] = {
    {"id", true, {.kind = SHAPE_INT}},
};
static const Declared AnswerRead = {"AnswerRead", false, 1, AnswerRead_fields};

static const Shape Answer_outputs_item = {.kind = SHAPE_STRUCT, .declared = &TensorRef};
static const Field Answer_fields[] = {
    {"id", true, {.kind = SHAPE_INT}},
    {"outputs", true, {.kind = SHAPE_LIST, .item = &Answer_outputs_item}},
    {"final", true, {.kind = SHAPE_BOOL}},
    {"error", false, {.kind = SHAPE_TEXT, .optional = true}},
    {"code", false, {.kind = SHAPE_TEXT}},
    {"parameters", false, {.kind = SHAPE_TEXT}},
};
static const Declared Answer = {"Answer", false, 6, Answer_fields};

static const Declared Retiring = {"Retiring", false, 0, NULL};

static const Field Memory_fields[] = {
    {"number", true, {.kind = SHAPE_INT}},
};
static const Declared Memory = {"Memory", false, 1, Memory_fields};

static const Field Forget_fields[] = {
    {"number", true, {.kind = SHAPE_INT}},
};
static const Declared Forget = {"Forget", false, 1, Forget_fields};

static const Shape Attach_avoid_item = {.kind = SHAPE_TEXT};
static const Field Attach_fields[] = {
    {"registration", true, {.kind = SHAPE_TEXT}},
    {"instance", true, {.kind = SHAPE_TEXT}},
    {"pid", false, {.kind = SHAPE_INT}},
    {"lost", false, {.kind = SHAPE_TEXT, .optional = true}},
    {"avoid", false, {.kind = SHAPE_LIST, .item = &Attach_avoid_item}},
    {"version", false, {.kind = SHAPE_INT}},
    {"batch", false, {.kind = SHAPE_BOOL}},
    {"protocol", false, {.kind = SHAPE_INT}},
};
static const Declared Attach = {"Attach", true, 8, Attach_fields};

static const Field Attached_fields[] = {
    {"worker", true, {.kind = SHAPE_TEXT}},
    {"lane_path", true, {.kind = SHAPE_TEXT}},
    {"execution_timeout_s", false, {.kind = SHAPE_FLOAT, .optional = true}},
    {"tracing", false, {.kind = SHAPE_BOOL}},
};
static const Declared Attached = {"Attached", true, 4, Attached_fields};

static const Field LaneLost_fields[] = {
    {"registration", true, {.kind = SHAPE_TEXT}},
    {"worker", true, {.kind = SHAPE_TEXT}},
    {"lost_workers", true, {.kind = SHAPE_INT}},
    {"final", false, {.kind = SHAPE_BOOL}},
    {"requests", false, {.kind = SHAPE_INT}},
    {"consecutive_losses", false, {.kind = SHAPE_INT}},
    {"request_id", false, {.kind = SHAPE_TEXT}},
};
static const Declared LaneLost = {"LaneLost", true, 7, LaneLost_fields};

static const Field BatchOverdue_fields[] = {
    {"registration", true, {.kind = SHAPE_TEXT}},
    {"worker", true, {.kind = SHAPE_TEXT}},
    {"was_read", true, {.kind = SHAPE_BOOL}},
    {"lost_workers", false, {.kind = SHAPE_INT}},
    {"final", false, {.kind = SHAPE_BOOL}},
    {"requests", false, {.kind = SHAPE_INT}},
    {"consecutive_losses", false, {.kind = SHAPE_INT}},
    {"read_ms", false, {.kind = SHAPE_INT}},
    {"request_id", false, {.kind = SHAPE_TEXT}},
};
static const Declared BatchOverdue = {"BatchOverdue", true, 9, BatchOverdue_fields};

static const Shape MayCall_chain_item = {.kind = SHAPE_TEXT};
static const Shape MayCall_workers_item = {.kind = SHAPE_TEXT};
static const Field MayCall_fields[] = {
    {"model", true, {.kind = SHAPE_TEXT}},
    {"chain", true, {.kind = SHAPE_LIST, .item = &MayCall_chain_item}},
    {"workers", true, {.kind = SHAPE_LIST, .item = &MayCall_workers_item}},
};
static const Declared MayCall = {"MayCall", true, 3, MayCall_fields};

static const Shape CallsWait_models_item = {.kind = SHAPE_TEXT};
static const Field CallsWait_fields[] = {
    {"pid", true, {.kind = SHAPE_INT}},
    {"worker", true, {.kind = SHAPE_TEXT}},
    {"models", true, {.kind = SHAPE_LIST, .item = &CallsWait_models_item}},
    {"proxy", false, {.kind = SHAPE_TEXT}},
};
static const Declared CallsWait = {"CallsWait", true, 4, CallsWait_fields};

static const Shape StuckCalls_models_item = {.kind = SHAPE_TEXT};
static const Field StuckCalls_fields[] = {
    {"models", true, {.kind = SHAPE_LIST, .item = &StuckCalls_models_item}},
    {"text", true, {.kind = SHAPE_TEXT}},
};
static const Declared StuckCalls = {"StuckCalls", true, 2, StuckCalls_fields};

static const Field Detach_fields[] = {
    {"registration", true, {.kind = SHAPE_TEXT}},
    {"instance", true, {.kind = SHAPE_TEXT}},
};
static const Declared Detach = {"Detach", true, 2, Detach_fields};

static const char *const Verdict_action_choices[] = {"fail", "retry", "wait", NULL};
static const Field Verdict_fields[] = {
    {"action", true, {.kind = SHAPE_TEXT, .choices = Verdict_action_choices}},
    {"text", false, {.kind = SHAPE_TEXT}},
    {"wait_s", false, {.kind = SHAPE_FLOAT}},
    {"fails_rest", false, {.kind = SHAPE_BOOL}},
};
static const Declared Verdict = {"Verdict", true, 4, Verdict_fields};

static const Field AskReadiness_fields[] = {
    {"name", true, {.kind = SHAPE_TEXT}},
    {"version", false, {.kind = SHAPE_TEXT}},
};
static const Declared AskReadiness = {"AskReadiness", true, 2, AskReadiness_fields};

static const Field Readiness_fields[] = {
    {"ready", true, {.kind = SHAPE_BOOL}},
};
static const Declared Readiness = {"Readiness", true, 1, Readiness_fields};

static const Field Failure_fields[] = {
    {"kind", true, {.kind = SHAPE_TEXT}},
    {"text", true, {.kind = SHAPE_TEXT}},
    {"traceback", false, {.kind = SHAPE_TEXT, .optional = true}},
};
static const Declared Failure = {"Failure", true, 3, Failure_fields};

const Declared *const lane_messages[] = {
    &Announce, &Batch, &BatchDone, &BatchLent, &BatchFailed, &BatchPart, &BatchParts, &BatchTexts, &BatchBegun,
    &Room, &BatchReturned, &Metrics, &Credit, &Cancel, &Hold, &Go, &Spilled, NULL
};

const Declared *const call_messages[] = {
    &Call, &CallDropped, &CallCancelled, &AnswerRead, &Answer, &Retiring, &Memory, &Forget, NULL
};

const Declared *const control_messages[] = {
    &Attach, &Attached, &LaneLost, &BatchOverdue, &MayCall, &CallsWait, &StuckCalls, &Detach, &Verdict,
    &AskReadiness, &Readiness, &Failure, NULL
};
