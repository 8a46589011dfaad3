#include "admin/message.h"

bool message_put_json(TRITONSERVER_Message *message, Text *json, Problem *problem)
{
    const char *start = NULL;
    size_t size = 0;
    bool made = api_succeeded(triton.MessageSerializeToJson(message, &start, &size), problem);
    if (made)
        text_put(json, start, size);
    api_ignore(triton.MessageDelete(message), "deleting a message");
    return made && json->failed ? problem_no_memory(problem) : made;
}
