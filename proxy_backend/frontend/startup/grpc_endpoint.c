#define _GNU_SOURCE
#include "startup/grpc_endpoint.h"

#include <stdio.h>
#include <stdlib.h>

/* The prefix of the headers for restrictions, as in NVIDIA's server. */
#define PREFIX "triton-grpc-protocol-"

static bool restrict_group(GrpcService *service, const RestrictionSetting *setting, Problem *problem)
{
    GrpcGroup group;
    if (!grpc_group_named(slice_of(setting->api), &group))
        return problem_set(problem, PROBLEM_INVALID, "there is no group of gRPC methods named '%s'", setting->api);
    GrpcRestriction *restriction = &service->restrictions[group];
    free(restriction->header);
    free(restriction->value);
    restriction->value = strdup(setting->value);
    if (asprintf(&restriction->header, PREFIX "%s", setting->header) < 0)
        restriction->header = NULL;
    return (restriction->header && restriction->value) || problem_no_memory(problem);
}

static bool fill(GrpcService *service, const CallsSettings *calls, const Settings *settings, Problem *problem)
{
    service->infer = (InferService){
        .calls = calls_new(calls, INFER_STATE, problem),
        .inputs = settings->limits.inputs,
    };
    if (service->infer.calls == NULL)
        return false;
    if (settings->grpc_forward && *settings->grpc_forward) {
        service->infer.forwarded = header_pattern_new(settings->grpc_forward, HEADER_WHOLE, problem);
        if (service->infer.forwarded == NULL)
            return false;
    }
    for (size_t i = 0; i < settings->grpc_restricted.count; i++) {
        if (!restrict_group(service, &settings->grpc_restricted.all[i], problem))
            return false;
    }
    return true;
}

GrpcService *grpc_endpoint_new(
    const GrpcService *service, const CallsSettings *calls, const Settings *settings, Problem *problem)
{
    GrpcService *made = malloc(sizeof *made);
    if (made == NULL) {
        problem_no_memory(problem);
        return NULL;
    }
    *made = *service;
    if (fill(made, calls, settings, problem))
        return made;
    grpc_endpoint_free(made);
    return NULL;
}

void grpc_endpoint_free(GrpcService *service)
{
    if (service->infer.calls)
        calls_free(service->infer.calls);
    header_pattern_free((HeaderPattern *)service->infer.forwarded);
    for (int i = 0; i < GROUPS; i++) {
        free(service->restrictions[i].header);
        free(service->restrictions[i].value);
    }
    free(service);
}
