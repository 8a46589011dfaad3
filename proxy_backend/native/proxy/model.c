#define _GNU_SOURCE
#include "proxy/model.h"

#include "base/text.h"
#include "wire/protocol.h"

#include <stdlib.h>
#include <string.h>

void model_unref(Model *model)
{
    if (model == NULL || __atomic_sub_fetch(&model->holders, 1, __ATOMIC_ACQ_REL))
        return;
    free(model->name);
    free(model->endpoint);
    free(model->registration);
    free(model->version);
    free(model->stand_in);
    free(model);
}

static char *parameter(Json config, const char *name)
{
    return json_string(json_find(json_find(json_find(config, "parameters"), name), "string_value"));
}

void model_read_config(Model *model, Json config, uint64_t version)
{
    Json rows = json_find(config, "max_batch_size");
    char *python_model = parameter(config, PYTHON_MODEL_PARAMETER);
    char *versions = parameter(config, VERSIONS_PARAMETER);
    model->endpoint = parameter(config, CONTROL_PARAMETER);
    model->registration = parameter(config, REGISTRATION_PARAMETER);
    model->stand_in = parameter(config, STAND_IN_PARAMETER);
    model->batching = rows.start && !json_is(rows, "0");
    model->details = python_model != NULL;
    model->streams = json_is(json_find(json_find(config, "model_transaction_policy"), "decoupled"), "true") ||
        (python_model && strcmp(python_model, "streams") == 0);
    model->number = version;
    model->version = versions ? texted("%lu", version) : NULL;
    free(python_model);
    free(versions);
}
