#define _GNU_SOURCE
#include "proxy/model.h"

#include "base/strings.h"
#include "wire/protocol.h"

#include <stdlib.h>
#include <string.h>

void model_unref(Model *model)
{
    if (model == NULL || __atomic_sub_fetch(&model->refs, 1, __ATOMIC_ACQ_REL))
        return;
    free(model->name);
    free(model->endpoint);
    free(model->registration);
    free(model->version);
    free(model->fixed_error);
    free(model);
}

static char *parameter(Json config, const char *name)
{
    return json_string(json_find(json_find(json_find(config, "parameters"), name), "string_value"));
}

/* Returns the largest id that a control input of this type can hold, or 0 if the type is not numeric. */
static uint64_t max_sequence_id(Json data_type)
{
    static const struct {
        const char *type;
        uint64_t max;
    } types[] = {{"\"TYPE_UINT64\"", UINT64_MAX}, {"\"TYPE_INT64\"", INT64_MAX}, {"\"TYPE_UINT32\"", UINT32_MAX},
        {"\"TYPE_INT32\"", INT32_MAX}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (json_is(data_type, types[i].type))
            return types[i].max;
    return 0;
}

static uint64_t find_max_sequence_id(Json config)
{
    JsonMember input, control;
    Json inputs = json_find(json_find(config, "sequence_batching"), "control_input");
    for (bool more = json_first_element(inputs, &input); more; more = json_next_element(inputs, &input)) {
        Json controls = json_find(input.value, "control");
        for (bool one = json_first_element(controls, &control); one; one = json_next_element(controls, &control))
            if (json_is(json_find(control.value, "kind"), "\"CONTROL_SEQUENCE_CORRID\""))
                return max_sequence_id(json_find(control.value, "data_type"));
    }
    return 0;
}

void model_read_config(Model *model, Json config, uint64_t version)
{
    Json rows = json_find(config, "max_batch_size");
    char *python_model = parameter(config, PYTHON_MODEL_PARAMETER);
    char *versions = parameter(config, VERSIONS_PARAMETER);
    model->endpoint = parameter(config, CONTROL_PARAMETER);
    model->registration = parameter(config, REGISTRATION_PARAMETER);
    model->fixed_error = parameter(config, STAND_IN_PARAMETER);
    model->has_batch_axis = rows.start && !json_is(rows, "0");
    model->is_triton_python = python_model != NULL;
    model->streams = json_is(json_find(json_find(config, "model_transaction_policy"), "decoupled"), "true") ||
        (python_model && strcmp(python_model, "streams") == 0);
    model->max_sequence_id = find_max_sequence_id(config);
    model->number = version;
    model->version = versions ? strdup_printf("%lu", version) : NULL;
    free(python_model);
    free(versions);
}
