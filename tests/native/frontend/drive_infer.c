/* Requests of inferences, with calls that only write down what they are given. */
#include "driver.h"

#include "http/bodies.h"

#include <stdlib.h>

enum { MOST_TENSORS = 64, MOST_MEMORY = 1 << 26 };

typedef struct Memory {
    struct Memory *next;
} Memory;

/* The call, and what is known of it here. */
static struct {
    Call call;
    Memory *memory;
    size_t memory_bytes;
    CallTensor tensors[MOST_TENSORS];
    size_t count;
    Buffer *response;
} fake;

void *call_memory(Call *call, size_t size)
{
    (void)call;
    fake.memory_bytes += size;
    Memory *memory = fake.memory_bytes < MOST_MEMORY ? malloc(sizeof *memory + size) : NULL;
    if (memory == NULL)
        return NULL;
    memory->next = fake.memory;
    fake.memory = memory;
    return memory + 1;
}

static const char *keep(Slice text)
{
    char *copy = call_memory(&fake.call, text.size + 1);
    if (copy) {
        memcpy(copy, text.start, text.size);
        copy[text.size] = '\0';
    }
    return copy;
}

static CallTensor *add(Slice name, const char *kind)
{
    if (fake.count == MOST_TENSORS)
        return NULL;
    CallTensor *tensor = &fake.tensors[fake.count++];
    *tensor = (CallTensor){.name = keep(name)};
    buffer_format(fake.response, "%s %s", kind, tensor->name ? tensor->name : "");
    return tensor->name ? tensor : NULL;
}

bool call_id(Call *call, Slice id, Problem *problem)
{
    (void)call;
    (void)problem;
    buffer_format(fake.response, "id %.*s\n", SLICE_ARGS(id));
    return true;
}

bool call_parameter(Call *call, Slice name, const CallParameter *value, Problem *problem)
{
    (void)call;
    (void)problem;
    buffer_format(fake.response, "parameter %.*s %d ", SLICE_ARGS(name), value->type);
    if (value->type == PARAMETER_STRING)
        buffer_put_slice(fake.response, value->string);
    else if (value->type == PARAMETER_DOUBLE)
        buffer_format(fake.response, "%g", value->number);
    else
        buffer_format(
            fake.response, "%lld", value->type == PARAMETER_BOOL ? value->boolean : (long long)value->integer);
    buffer_put_char(fake.response, '\n');
    return true;
}

CallTensor *call_input(Call *call, Slice name, Slice datatype, const int64_t *shape, size_t dims, Problem *problem)
{
    (void)call;
    CallTensor *tensor = add(name, "input");
    if (tensor == NULL) {
        problem_set(problem, PROBLEM_TOO_LARGE, "too many");
        return NULL;
    }
    tensor->datatype = datatype_named(datatype);
    tensor->elements = 1;
    for (size_t i = 0; i < dims; i++)
        if (__builtin_mul_overflow(tensor->elements, (uint64_t)shape[i], &tensor->elements)) {
            problem_set(problem, PROBLEM_INVALID, "too many elements");
            return NULL;
        }
    buffer_format(fake.response, " %s %llu:", datatype_name(tensor->datatype), (unsigned long long)tensor->elements);
    return tensor;
}

bool call_input_data(Call *call, const void *bytes, size_t size, Problem *problem)
{
    (void)call;
    (void)problem;
    for (size_t i = 0; i < size; i++)
        buffer_format(fake.response, "%02x", ((const unsigned char *)bytes)[i]);
    buffer_put_char(fake.response, '\n');
    return true;
}

bool call_input_region(Call *call, Slice region, uint64_t offset, uint64_t size, Problem *problem)
{
    (void)call;
    (void)problem;
    buffer_format(fake.response, " region %.*s %llu %llu\n", SLICE_ARGS(region), (unsigned long long)offset,
        (unsigned long long)size);
    return true;
}

CallTensor *call_output(Call *call, Slice name, Problem *problem)
{
    (void)call;
    CallTensor *tensor = add(name, "output");
    if (tensor == NULL)
        problem_set(problem, PROBLEM_TOO_LARGE, "too many");
    else
        buffer_put_char(fake.response, '\n');
    return tensor;
}

bool call_output_classes(Call *call, CallTensor *output, int64_t classes, Problem *problem)
{
    (void)call;
    (void)problem;
    buffer_format(fake.response, "classes %s %lld\n", output->name, (long long)classes);
    return true;
}

bool call_output_region(Call *call, CallTensor *output, Slice region, uint64_t offset, uint64_t size, Problem *problem)
{
    buffer_format(fake.response, "%s ", output->name);
    return call_input_region(call, region, offset, size, problem);
}

/* The size of the JSON, and a body. */
void run_infer(Slice question, Buffer *response)
{
    size_t size = cut_number(&question, 4);
    Slice json = {question.start, size < question.size ? size : question.size};
    Limits limits = {.json_depth = 16, .json_values = 10000};
    Problem problem = {0};
    bool binary = false;
    fake.response = response;
    fake.count = fake.memory_bytes = 0;
    if (http_infer_read(&fake.call, json, slice_after(question, json.size), &limits, &binary, &problem)) {
        for (size_t i = 0; i < fake.count; i++)
            if (fake.tensors[i].flags)
                buffer_format(response, "flags %s %u\n", fake.tensors[i].name, fake.tensors[i].flags);
        buffer_format(response, "binary_output %d\n", binary);
    } else {
        response_send_problem(response, &problem);
    }
    while (fake.memory) {
        Memory *next = fake.memory->next;
        free(fake.memory);
        fake.memory = next;
    }
}
