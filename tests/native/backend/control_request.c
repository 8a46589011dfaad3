/* Asks the dispatcher at an endpoint one question, with a time limit in milliseconds, and prints why there is no answer. */
#include "control/control.h"

#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words)
{
    Control *control = count == 3 ? control_new(words[1]) : NULL;
    Buffer question = {0}, reply = {0};
    if (control == NULL)
        return 2;
    message_begin(&question, "ListModels", 0);
    char *failure = control_request(control, &question, &reply, atoi(words[2]));
    printf("%s\n", failure ? failure : "answered");
    free(failure);
    buffer_free(&question);
    buffer_free(&reply);
    control_free(control);
    return 0;
}
