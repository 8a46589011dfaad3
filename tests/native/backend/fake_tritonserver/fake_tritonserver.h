/* What the files of the fake tritonserver have in common. */
#pragma once

#include "triton/api.h"

struct TRITONSERVER_Error {
    TRITONSERVER_Error_Code code;
    char *text;
};
struct TRITONBACKEND_Model {
    void *state;
    char *config;
};
struct TRITONBACKEND_ModelInstance {
    void *state;
    TRITONBACKEND_Model *model;
};
struct TRITONBACKEND_Request {
    int number;
};

/* What is printed at the end: requests that were released; those of which statistics were reported in order. */
extern int released, statistics;
/* The response factories that are held: a decoupled model has not answered all. */
extern int factories;
