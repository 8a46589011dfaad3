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
    if (proxy->control && proxy->name) /* else it is one of streams/retiring.c, of which the dispatcher knows nothing */
        detach(proxy);
    free_proxy(proxy);
}
