#include "proxy/life.h"

#include "proxy/attachment.h"

#include <stdlib.h>

void free_proxy(Proxy *proxy)
{
    if (proxy == NULL)
        return;
    drop_lane(proxy);
    calls_end(&proxy->calls);
    control_free(proxy->control);
    buffer_free(&proxy->message);
    buffer_free(&proxy->avoid);
    free(proxy->worker);
    free(proxy->name);
    model_unref(proxy->model);
    free(proxy);
}

void end_proxy(Proxy *proxy)
{
    if (proxy->control && proxy->name) /* otherwise streams/retiring.c made it, and the dispatcher does not know it */
        detach(proxy);
    free_proxy(proxy);
}
