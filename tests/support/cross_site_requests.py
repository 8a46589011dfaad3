"""Requests that browsers send for other sites' pages, and similar harmless ones, for every HTTP port."""

from __future__ import annotations

import socket
from typing import NamedTuple


class Sent(NamedTuple):
    """A request to 127.0.0.1; `PORT` in a header stands for the port connected to."""

    method: str
    headers: dict[str, str]
    refused: bool

    def headers_for(self, port: int) -> dict[str, str]:
        """Return the headers of a request to that port."""
        return {name: value.replace("PORT", str(port)) for name, value in self.headers.items()}


_HERE = "127.0.0.1:PORT"
CASES = {
    # DNS rebinding: the page's own name, with the port that the browser connected to
    "rebound": Sent("GET", {"Host": "page.example.com:PORT"}, refused=True),
    "rebound-with-a-dot": Sent("GET", {"Host": "Page.Example.COM.:PORT"}, refused=True),
    "rebound-with-digits": Sent("GET", {"Host": "1.2.3.4.example.com:PORT"}, refused=True),
    "rebound-local-in-the-middle": Sent("GET", {"Host": "a.local.example.com:PORT"}, refused=True),
    "rebound-post": Sent(
        "POST", {"Host": "page.example.com:PORT", "Origin": "http://page.example.com:PORT"}, refused=True
    ),
    # names of this machine, and of a container's or a cluster's services
    "address": Sent("GET", {"Host": _HERE}, refused=False),
    "address-6": Sent("GET", {"Host": "[::1]:PORT"}, refused=False),
    "other-address": Sent("GET", {"Host": "192.0.2.7:PORT"}, refused=False),
    "localhost": Sent("GET", {"Host": "localhost:PORT"}, refused=False),
    "localhost-with-a-dot": Sent("GET", {"Host": "localhost.:PORT"}, refused=False),
    "below-localhost": Sent("GET", {"Host": "models.localhost:PORT"}, refused=False),
    "service": Sent("GET", {"Host": "triton:PORT"}, refused=False),
    "service-in-a-cluster": Sent("GET", {"Host": "triton.models.svc.cluster.local:PORT"}, refused=False),
    "own-name": Sent("GET", {"Host": f"{socket.gethostname()}:PORT"}, refused=False),
    # a reverse proxy that passes on the name that its clients used
    "proxy": Sent("POST", {"Host": "models.example.com"}, refused=False),
    "proxy-with-a-port": Sent("GET", {"Host": "models.example.com:8443"}, refused=False),
    "proxy-without-a-number": Sent("GET", {"Host": "models.example.com:http"}, refused=False),
    # pages of other sites
    "cross-site": Sent("POST", {"Host": _HERE, "Sec-Fetch-Site": "cross-site"}, refused=True),
    "other-port": Sent("POST", {"Host": _HERE, "Sec-Fetch-Site": "same-site"}, refused=True),
    "cross-origin": Sent("POST", {"Host": _HERE, "Origin": "http://page.example.com"}, refused=True),
    "sandboxed": Sent("POST", {"Host": _HERE, "Origin": "null"}, refused=True),
    # this server's own pages, a typed address, and a link from another site
    "own-page": Sent(
        "POST", {"Host": _HERE, "Sec-Fetch-Site": "same-origin", "Origin": f"http://{_HERE}"}, refused=False
    ),
    "own-page-without-tls": Sent("POST", {"Host": "gpu7:PORT", "Origin": "http://GPU7:PORT"}, refused=False),
    "typed": Sent("POST", {"Host": _HERE, "Sec-Fetch-Site": "none"}, refused=False),
    "link": Sent("GET", {"Host": _HERE, "Sec-Fetch-Site": "cross-site"}, refused=False),
}  # fmt: skip
