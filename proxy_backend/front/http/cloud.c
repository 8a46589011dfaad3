#include "http/routes.h"
bool cloud_route(const HttpService *service, const Target *target, HttpRoute *route)
{
    (void)service;
    (void)target;
    (void)route;
    return false;
}
