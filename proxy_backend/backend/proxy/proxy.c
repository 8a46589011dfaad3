#include "proxy/proxy.h"

#include "proxy/attachment.h"

#include <stdlib.h>

void proxy_free(Proxy *proxy)
{
    if (proxy == NULL)
        return;
    proxy_drop_lane(proxy);
    calls_end(&proxy->calls);
    control_free(proxy->control);
    buffer_free(&proxy->message);
    buffer_free(&proxy->avoid);
    free(proxy->worker);
    free(proxy->name);
    model_unref(proxy->model);
    free(proxy);
}

void proxy_end(Proxy *proxy)
{
    if (proxy->control && proxy->name) /* without a name, worker_lost.c made it, and the dispatcher does not know it */
        proxy_detach(proxy);
    proxy_free(proxy);
}
