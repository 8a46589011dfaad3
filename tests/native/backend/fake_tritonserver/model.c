/* The model and its one instance, of which the proxy asks for the configuration, and where it leaves its state. */
#define _GNU_SOURCE
#include "fake_tritonserver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TRITONSERVER_Error *TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char *text)
{
    TRITONSERVER_Error *error = malloc(sizeof *error);
    *error = (TRITONSERVER_Error){code, strdup(text)};
    return error;
}

void TRITONSERVER_ErrorDelete(TRITONSERVER_Error *error)
{
    free(error->text);
    free(error);
}

const char *TRITONSERVER_ErrorMessage(TRITONSERVER_Error *error)
{
    return error->text;
}

TRITONSERVER_Error *TRITONSERVER_LogMessage(int level, const char *file, int line, const char *text)
{
    printf("log %d %s:%d %s\n", level, file, line, text);
    fflush(stdout); /* it may be the last thing that is said */
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ApiVersion(uint32_t *major, uint32_t *minor)
{
    *major = API_MAJOR;
    *minor = getenv("FAKE_API") ? (uint32_t)atoi(getenv("FAKE_API")) : API_MINOR;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelName(TRITONBACKEND_Model *model, const char **name)
{
    (void)model;
    *name = "model";
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelServer(TRITONBACKEND_Model *model, TRITONSERVER_Server **server)
{
    (void)model;
    *server = NULL; /* calls are none of this program's business */
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelVersion(TRITONBACKEND_Model *model, uint64_t *version)
{
    (void)model;
    *version = 3;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelConfig(
    TRITONBACKEND_Model *model, uint32_t version, TRITONSERVER_Message **message)
{
    (void)version;
    *message = (TRITONSERVER_Message *)model->config;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message *message, const char **text, size_t *size)
{
    *text = (const char *)message;
    *size = strlen(*text);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_MessageDelete(TRITONSERVER_Message *message)
{
    (void)message;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelState(TRITONBACKEND_Model *model, void **state)
{
    *state = model->state;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelSetState(TRITONBACKEND_Model *model, void *state)
{
    model->state = state;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Model **model)
{
    *model = instance->model;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceName(TRITONBACKEND_ModelInstance *instance, const char **name)
{
    (void)instance;
    *name = "model_0";
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceState(TRITONBACKEND_ModelInstance *instance, void **state)
{
    *state = instance->state;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceSetState(TRITONBACKEND_ModelInstance *instance, void *state)
{
    instance->state = state;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportStatistics(TRITONBACKEND_ModelInstance *instance,
    TRITONBACKEND_Request *request, bool success, uint64_t exec_start, uint64_t compute_start, uint64_t compute_end,
    uint64_t exec_end)
{
    (void)instance, (void)request, (void)success;
    statistics += exec_start <= compute_start && compute_start <= compute_end && compute_end <= exec_end;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportBatchStatistics(TRITONBACKEND_ModelInstance *instance,
    uint64_t rows, uint64_t exec_start, uint64_t compute_start, uint64_t compute_end, uint64_t exec_end)
{
    (void)instance, (void)exec_start, (void)compute_start, (void)compute_end, (void)exec_end;
    printf("batch of %lu rows\n", rows);
    return NULL;
}
