/* Requests that a browser sends on behalf of another site's page. Only browsers send Origin and Sec-Fetch-Site, which
 * no page can change. dispatcher/http_server/browsers.py has the same rule for the other HTTP ports.
 */
#ifndef PYTRITON_FRONTEND_HTTP1_BROWSERS_H
#define PYTRITON_FRONTEND_HTTP1_BROWSERS_H

#include "http1/head.h"

/* Returns whether a page of another site makes a browser change something here, or run a model. It cannot read
 * answers to other requests.
 */
bool browser_is_cross_site(const HttpHead *head);
/* Returns whether the Host header has a name that an attacker may have resolved to this machine (DNS rebinding), and
 * its port (0: none). IP addresses, names without a dot, private domains, and the machine's own name cannot be an
 * attacker's.
 */
bool browser_names_public_host(const HttpHead *head, uint64_t *port);

#endif
