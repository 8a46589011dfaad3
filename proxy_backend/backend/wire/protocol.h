/* Written by scripts/generate from the messages of pytriton/_protocol: do not edit.
 *
 * An array (lanes, calls) has at most NAME_SIZE and at least NAME_LEAST elements. The first element of a message is its
 * name; NAME_field is the position of a field. A map (control) has NAME_FIELDS fields besides its type.
 */
/* clang-format off */
#ifndef PYTRITON_BACKEND_WIRE_PROTOCOL_H
#define PYTRITON_BACKEND_WIRE_PROTOCOL_H

/* ── Numbers and names ─────────────────────────────────────────────────────────────────────────────────── */

enum { PROTOCOL = 23 };
enum { ARENA_MEMORY = 0, OWN_MEMORY = -1 };
enum { MAX_LANE_MEMORIES = 16, MAX_CALL_MEMORIES = 1024 };
enum { MAX_METRICS = 4096, MAX_LABELS = 64, MAX_BUCKETS = 1024 };
#define TRITONS_METRICS "nv_"
#define CHAIN_PARAMETER "pytriton_calls"
#define CONTROL_PARAMETER "pytriton_control"
#define HANDLE_PARAMETER "pytriton_waiting"
#define MENDED_PARAMETER "pytriton_mended"
#define NO_CHAIN_PARAMETER "pytriton_not_calls"
#define PYTHON_MODEL_PARAMETER "pytriton_python_model"
#define REGISTRATION_PARAMETER "pytriton_registration"
#define STAND_IN_PARAMETER "pytriton_stand_in"
#define VERSIONS_PARAMETER "pytriton_versions"
#define VERSION_PARAMETER "pytriton_version"

/* ── Parts of messages ─────────────────────────────────────────────────────────────────────────────────── */

/* A tensor in shared memory: C-contiguous, little-endian. BYTES tensors are in Triton's serialized form. */
enum {
    TENSOR_REF_SIZE = 6, TENSOR_REF_LEAST = 6, TENSOR_REF_name = 0, TENSOR_REF_datatype = 1, TENSOR_REF_shape = 2,
    TENSOR_REF_memory = 3, TENSOR_REF_offset = 4, TENSOR_REF_nbytes = 5
};
/* One request of a batch. `parameters` is JSON; `requested` lists the requested outputs. */
enum {
    REQUEST_REF_SIZE = 5, REQUEST_REF_LEAST = 3, REQUEST_REF_inputs = 0, REQUEST_REF_parameters = 1,
    REQUEST_REF_requested = 2, REQUEST_REF_request_id = 3, REQUEST_REF_details = 4
};
/* Request properties that only Triton Python models (`model.py`) use. */
enum {
    REQUEST_DETAILS_SIZE = 4, REQUEST_DETAILS_LEAST = 0, REQUEST_DETAILS_correlation_id = 0,
    REQUEST_DETAILS_flags = 1, REQUEST_DETAILS_timeout = 2, REQUEST_DETAILS_trace = 3
};
/* The response to one request: its outputs, or an error that affects only this request. */
enum {
    RESPONSE_REF_SIZE = 3, RESPONSE_REF_LEAST = 1, RESPONSE_REF_outputs = 0, RESPONSE_REF_error = 1,
    RESPONSE_REF_details = 2
};
/* Response properties that only Triton Python models set. */
enum {
    RESPONSE_DETAILS_SIZE = 5, RESPONSE_DETAILS_LEAST = 0, RESPONSE_DETAILS_code = 0,
    RESPONSE_DETAILS_parameters = 1, RESPONSE_DETAILS_final = 2, RESPONSE_DETAILS_empty = 3,
    RESPONSE_DETAILS_reschedule = 4
};
/* The trace contexts of a batch, one for each request; "" for an untraced request. */
enum { BATCH_TRACE_SIZE = 2, BATCH_TRACE_LEAST = 2, BATCH_TRACE_begun_ns = 0, BATCH_TRACE_contexts = 1 };
/* An element of `BatchParts` with the content of one `BatchPart`. */
enum { PART_REF_SIZE = 2, PART_REF_LEAST = 2, PART_REF_id = 0, PART_REF_responses = 1 };
/* One change to a metric. `change` is "" (create), "increment", "set" or "observe", with `value`; or `DELETE`. */
enum {
    METRIC_UPDATE_SIZE = 7, METRIC_UPDATE_LEAST = 4, METRIC_UPDATE_family = 0, METRIC_UPDATE_description = 1,
    METRIC_UPDATE_kind = 2, METRIC_UPDATE_labels = 3, METRIC_UPDATE_buckets = 4, METRIC_UPDATE_change = 5,
    METRIC_UPDATE_value = 6
};
/* One link of a call chain: a model that waits for the answer to a call, and its blocked worker. */
enum { LINK_SIZE = 2, LINK_LEAST = 2, LINK_model = 0, LINK_worker = 1 };

/* ── Messages on a lane: pytriton/_protocol/lanes/lane_messages.py ─────────────────────────────────────── */

/* Announcement of memory segment `memory`, whose descriptor is in the next packet. */
#define ANNOUNCE_NAME "Announce"
enum { ANNOUNCE_SIZE = 2, ANNOUNCE_LEAST = 2, ANNOUNCE_memory = 1 };
/* proxy → worker: run the callable on these requests. */
#define BATCH_NAME "Batch"
enum {
    BATCH_SIZE = 8, BATCH_LEAST = 3, BATCH_id = 1, BATCH_requests = 2, BATCH_trace = 3, BATCH_reads = 4,
    BATCH_alone = 5, BATCH_taken_ns = 6, BATCH_rows = 7
};
/* worker → proxy: the responses of a batch, one for each request, in order. */
#define BATCH_DONE_NAME "BatchDone"
enum { BATCH_DONE_SIZE = 3, BATCH_DONE_LEAST = 3, BATCH_DONE_id = 1, BATCH_DONE_responses = 2 };
/* worker → proxy: like `BatchDone`, but outputs are in the worker's own memory, or are large and in its arena. */
#define BATCH_LENT_NAME "BatchLent"
enum { BATCH_LENT_SIZE = 3, BATCH_LENT_LEAST = 3, BATCH_LENT_id = 1, BATCH_LENT_responses = 2 };
/* worker → proxy: the whole batch failed; `text` is the error for the client. */
#define BATCH_FAILED_NAME "BatchFailed"
enum { BATCH_FAILED_SIZE = 3, BATCH_FAILED_LEAST = 3, BATCH_FAILED_id = 1, BATCH_FAILED_text = 2 };
/* worker → proxy: one response each for some of a batch's requests; more may follow. */
#define BATCH_PART_NAME "BatchPart"
enum { BATCH_PART_SIZE = 3, BATCH_PART_LEAST = 3, BATCH_PART_id = 1, BATCH_PART_responses = 2 };
/* worker → proxy: several `BatchPart`s in order. Each counts separately for `Credit`. */
#define BATCH_PARTS_NAME "BatchParts"
enum { BATCH_PARTS_SIZE = 2, BATCH_PARTS_LEAST = 2, BATCH_PARTS_parts = 1 };
/* worker → proxy: one response each to batches with a single request. Each is a single string, the only output. */
#define BATCH_TEXTS_NAME "BatchTexts"
enum {
    BATCH_TEXTS_SIZE = 4, BATCH_TEXTS_LEAST = 4, BATCH_TEXTS_output = 1, BATCH_TEXTS_ids = 2,
    BATCH_TEXTS_texts = 3
};
/* worker → proxy: the inputs have been copied; the next batch may be sent if `Room` allows it. */
#define BATCH_BEGUN_NAME "BatchBegun"
enum { BATCH_BEGUN_SIZE = 2, BATCH_BEGUN_LEAST = 2, BATCH_BEGUN_id = 1 };
/* worker → proxy: the maximum number of batches in flight (decoupled models). */
#define ROOM_NAME "Room"
enum { ROOM_SIZE = 2, ROOM_LEAST = 2, ROOM_batches = 1 };
/* worker → proxy: `execute` of a Triton Python model has returned; its responses may follow later. */
#define BATCH_RETURNED_NAME "BatchReturned"
enum { BATCH_RETURNED_SIZE = 3, BATCH_RETURNED_LEAST = 2, BATCH_RETURNED_id = 1, BATCH_RETURNED_reschedule = 2 };
/* worker → proxy: changes to custom metrics, in order. Acknowledged with a `Credit`, like a `BatchPart`. */
#define METRICS_NAME "Metrics"
enum { METRICS_SIZE = 2, METRICS_LEAST = 2, METRICS_updates = 1 };
/* proxy → worker: the memory of the oldest `parts` parts, or of a `BatchLent`, may be reused. */
#define CREDIT_NAME "Credit"
enum { CREDIT_SIZE = 2, CREDIT_LEAST = 2, CREDIT_parts = 1 };
/* proxy → worker: the client is no longer waiting for this request; `request` is its position in the batch. */
#define CANCEL_NAME "Cancel"
enum { CANCEL_SIZE = 3, CANCEL_LEAST = 3, CANCEL_id = 1, CANCEL_request = 2 };
/* proxy → worker: the client of this stream is not reading; pause the stream until `Go`. */
#define HOLD_NAME "Hold"
enum { HOLD_SIZE = 3, HOLD_LEAST = 3, HOLD_id = 1, HOLD_request = 2 };
/* proxy → worker: the client of this stream has read; resume the stream. */
#define GO_NAME "Go"
enum { GO_SIZE = 3, GO_LEAST = 3, GO_id = 1, GO_request = 2 };
/* Reference to a message that is too large for a packet and is therefore in the sender's arena. */
#define SPILLED_NAME "Spilled"
enum { SPILLED_SIZE = 3, SPILLED_LEAST = 3, SPILLED_offset = 1, SPILLED_nbytes = 2 };

/* ── Messages about calls: pytriton/_protocol/calls/call_messages.py ───────────────────────────────────── */

/* worker → proxy: call a model. */
#define CALL_NAME "Call"
enum {
    CALL_SIZE = 13, CALL_LEAST = 13, CALL_id = 1, CALL_model = 2, CALL_version = 3, CALL_inputs = 4, CALL_outputs = 5,
    CALL_parameters = 6, CALL_request_id = 7, CALL_correlation_id = 8, CALL_flags = 9, CALL_timeout_us = 10,
    CALL_stream = 11, CALL_chain = 12
};
/* worker → proxy: the caller no longer waits for this call; send no more answers. */
#define CALL_DROPPED_NAME "CallDropped"
enum { CALL_DROPPED_SIZE = 2, CALL_DROPPED_LEAST = 2, CALL_DROPPED_id = 1 };
/* worker → proxy: ask the called model to stop. Its remaining answers are still sent. */
#define CALL_CANCELLED_NAME "CallCancelled"
enum { CALL_CANCELLED_SIZE = 2, CALL_CANCELLED_LEAST = 2, CALL_CANCELLED_id = 1 };
/* worker → proxy: the oldest outstanding answer to this call has been read. */
#define ANSWER_READ_NAME "AnswerRead"
enum { ANSWER_READ_SIZE = 2, ANSWER_READ_LEAST = 2, ANSWER_READ_id = 1 };
/* proxy → worker: an answer to a call. If `error` is set, `code` is the name of Triton's error code. */
#define ANSWER_NAME "Answer"
enum {
    ANSWER_SIZE = 7, ANSWER_LEAST = 4, ANSWER_id = 1, ANSWER_outputs = 2, ANSWER_final = 3, ANSWER_error = 4,
    ANSWER_code = 5, ANSWER_parameters = 6
};
/* proxy → worker: this proxy accepts no new calls. Calls in flight are still answered. */
#define RETIRING_NAME "Retiring"
enum { RETIRING_SIZE = 1, RETIRING_LEAST = 1 };
/* Announcement of the sender's memory segment `number`, whose descriptor is in the same packet. */
#define MEMORY_NAME "Memory"
enum { MEMORY_SIZE = 2, MEMORY_LEAST = 2, MEMORY_number = 1 };
/* Report that the sender has released its memory segment `number`. */
#define FORGET_NAME "Forget"
enum { FORGET_SIZE = 2, FORGET_LEAST = 2, FORGET_number = 1 };

/* ── Messages of the control socket: pytriton/_protocol/messages/proxy.py ──────────────────────────────── */

/* Request for a lane, from a proxy instance. `lost` is the worker that it could not reach, if any. */
#define ATTACH_NAME "Attach"
enum { ATTACH_FIELDS = 8 };
#define ATTACH_registration "registration"
#define ATTACH_instance "instance"
#define ATTACH_pid "pid"
#define ATTACH_lost "lost"
#define ATTACH_avoid "avoid"
#define ATTACH_version "version"
#define ATTACH_batch "batch"
#define ATTACH_protocol "protocol"
/* Answer to Attach: connect to the worker that listens at `lane_path`. */
#define ATTACHED_NAME "Attached"
enum { ATTACHED_FIELDS = 4 };
#define ATTACHED_worker "worker"
#define ATTACHED_lane_path "lane_path"
#define ATTACHED_execution_timeout_s "execution_timeout_s"
#define ATTACHED_tracing "tracing"
/* Report that the lane of a worker broke after the worker had received a batch. Answered with a Verdict. */
#define LANE_LOST_NAME "LaneLost"
enum { LANE_LOST_FIELDS = 7 };
#define LANE_LOST_registration "registration"
#define LANE_LOST_worker "worker"
#define LANE_LOST_lost_workers "lost_workers"
#define LANE_LOST_final "final"
#define LANE_LOST_requests "requests"
#define LANE_LOST_consecutive_losses "consecutive_losses"
#define LANE_LOST_request_id "request_id"
/* Report that a batch was not answered in time. Answered with a Verdict. The other fields are those of LaneLost. */
#define BATCH_OVERDUE_NAME "BatchOverdue"
enum { BATCH_OVERDUE_FIELDS = 9 };
#define BATCH_OVERDUE_registration "registration"
#define BATCH_OVERDUE_worker "worker"
#define BATCH_OVERDUE_was_read "was_read"
#define BATCH_OVERDUE_lost_workers "lost_workers"
#define BATCH_OVERDUE_final "final"
#define BATCH_OVERDUE_requests "requests"
#define BATCH_OVERDUE_consecutive_losses "consecutive_losses"
#define BATCH_OVERDUE_read_ms "read_ms"
#define BATCH_OVERDUE_request_id "request_id"
/* Query whether a worker may call a model that is itself waiting for the result of this call. */
#define MAY_CALL_NAME "MayCall"
enum { MAY_CALL_FIELDS = 3 };
#define MAY_CALL_model "model"
#define MAY_CALL_chain "chain"
#define MAY_CALL_workers "workers"
/* Report that a worker's calls to `models` have been waiting for some time. Answered with StuckCalls. */
#define CALLS_WAIT_NAME "CallsWait"
enum { CALLS_WAIT_FIELDS = 4 };
#define CALLS_WAIT_pid "pid"
#define CALLS_WAIT_worker "worker"
#define CALLS_WAIT_models "models"
#define CALLS_WAIT_proxy "proxy"
/* Answer to CallsWait: the models whose calls can never be answered, and the reason (`text`). */
#define STUCK_CALLS_NAME "StuckCalls"
enum { STUCK_CALLS_FIELDS = 2 };
#define STUCK_CALLS_models "models"
#define STUCK_CALLS_text "text"
/* Report that a proxy instance is exiting: Triton has unloaded its model, and no batch is in flight. */
#define DETACH_NAME "Detach"
enum { DETACH_FIELDS = 2 };
#define DETACH_registration "registration"
#define DETACH_instance "instance"
/* Answer to LaneLost, BatchOverdue and MayCall. `text` is the error for clients, `wait_s` how long to wait. */
#define VERDICT_NAME "Verdict"
enum { VERDICT_FIELDS = 4 };
#define VERDICT_action "action"
#define VERDICT_text "text"
#define VERDICT_wait_s "wait_s"
#define VERDICT_fails_rest "fails_rest"
/* Query whether a version of a model (or, without a version, any version) is ready. Answered with Readiness. */
#define ASK_READINESS_NAME "AskReadiness"
enum { ASK_READINESS_FIELDS = 2 };
#define ASK_READINESS_name "name"
#define ASK_READINESS_version "version"
/* Answer to AskReadiness: whether the model is ready. */
#define READINESS_NAME "Readiness"
enum { READINESS_FIELDS = 1 };
#define READINESS_ready "ready"
/* Answer to a request that failed. `kind` is one of `errors.ErrorKind`. */
#define FAILURE_NAME "Failure"
enum { FAILURE_FIELDS = 3 };
#define FAILURE_kind "kind"
#define FAILURE_text "text"
#define FAILURE_traceback "traceback"

#endif
