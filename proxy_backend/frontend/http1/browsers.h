/* Detects requests that a browser sends on behalf of another site's page. Only browsers send Origin and
 * Sec-Fetch-Site, and no page can change them. dispatcher/http_server/browsers.py has the same rule for the other HTTP
 * ports.
 */
#ifndef PYTRITON_FRONTEND_HTTP1_BROWSERS_H
#define PYTRITON_FRONTEND_HTTP1_BROWSERS_H

#include "http1/head.h"

/* Returns whether another site's page makes a browser change something or run a model. Other requests are harmless:
 * the page cannot read the answers.
 */
bool browser_is_cross_site(const HttpHead *head);
/* Returns whether the Host header contains a name that an attacker may have resolved to this machine (DNS rebinding).
 * `port` receives its port, or 0. IP addresses, names without a dot, private domains, and the name of this machine are
 * safe.
 */
bool browser_names_public_host(const HttpHead *head, uint64_t *port);

#endif
