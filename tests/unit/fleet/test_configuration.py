"""HAProxy's configuration as text: which backends exist, which servers they have, and where a model is routed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from fakes.fake_dispatcher import SERVER, status

from pytriton._protocol import messages
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.fleet import NodeStatus
from pytriton.fleet.balancer.configuration import BalancerSettings, check_node, render, server_name
from pytriton.fleet.balancer.layout import Node, NodeEndpoint, node_of, update_nodes


def node(name: str, *models: str, **more: Any) -> Node:
    number = ord(name[0])
    return Node(
        name,
        NodeEndpoint(f"10.0.0.{number}", 8000),
        NodeEndpoint(f"10.0.0.{number}", 8001),
        frozenset(models),
        **more,
    )


def backends(text: str) -> dict[str, list[str]]:
    """Return backend -> names of its servers."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["backend"]:
            found[words[1]] = []
        elif words[:1] == ["server"]:
            found[list(found)[-1]].append(words[1])
    return found


def table(text: str) -> dict[str, str]:
    return dict(line.split() for line in text.splitlines())


def test_each_model_is_routed_to_the_nodes_that_serve_it() -> None:
    files = render([node("a", "m", "n"), node("b", "m")], BalancerSettings(), "/d")
    servers = backends(files.configuration)
    leads = table(files.models)
    for protocol in ("http", "grpc"):
        assert servers[f"{protocol}:{leads['m']}"] == ["a", "b"]
        assert servers[f"{protocol}:{leads['n']}"] == ["a"]
        assert servers[f"{protocol}:{leads['seq:m']}"] == ["a", "b"]
        assert servers[f"{protocol}:all"] == ["a", "b"]
    assert "uri /v2/models/m/ready " in files.configuration


def test_many_models_share_the_backend_of_their_nodes() -> None:
    names = [f"m{index}" for index in range(1000)]
    files = render(
        [node("a", *names), node("b", *names[::2])], BalancerSettings(own_backends=999), "/d"
    )
    servers = backends(files.configuration)
    # all, none, and two for each of the two sets of nodes.
    assert len([name for name in servers if name.startswith("http:")]) == 6
    leads = table(files.models)
    assert servers[f"http:{leads['m0']}"] == ["a", "b"]
    assert servers[f"http:{leads['m1']}"] == ["a"]
    few = render([node("a", *names)], BalancerSettings(own_backends=1000), "/d")
    assert table(few.models)["m1"] == "model-m1"


def test_a_provisional_model_has_its_own_backend_with_its_share() -> None:
    nodes = [node(name, "m", "n", shares={"m": 0.1} if name == "a" else {}) for name in "abc"]
    files = render(nodes, BalancerSettings(own_backends=1), "/d")
    assert table(files.models)["m"] == "model-m"
    assert table(files.models)["n"].startswith("set-")
    for protocol in ("http", "grpc"):
        (text,) = re.findall(rf"backend {protocol}:model-m\n((?:    .*\n)+)", files.configuration)
        assert "balance roundrobin" in text
        weights = [int(one) for one in re.findall(r" weight (\d+)", text)]
        assert weights[0] / sum(weights) == pytest.approx(0.1, abs=0.002)
        assert weights[1] == weights[2]
    assert files.configuration.count(" weight ") == 6


@pytest.mark.parametrize(
    ("tried", "others", "share"),
    [(1, 1, 0.01), (1, 9, 0.5), (1, 1, 0.999), (3, 2, 0.3), (1, 99, 0.01)],
)
def test_nodes_with_the_provisional_version_get_the_share_together(
    tried: int, others: int, share: float
) -> None:
    nodes = [node(f"a{one}", "m", shares={"m": share}) for one in range(tried)]
    nodes += [node(f"b{one}", "m") for one in range(others)]
    text = render(nodes, BalancerSettings(grpc=""), "/d").configuration
    found = re.findall(r" server ([ab])\d+ .* weight (\d+)", text)
    new, all_ = (
        sum(int(weight) for name, weight in found if name in names) for names in ("a", "ab")
    )
    assert len(found) == tried + others
    assert new / all_ == pytest.approx(share, rel=0.1)
    assert all(1 <= int(weight) <= 256 for _, weight in found)


def test_if_all_nodes_have_it_provisionally_none_gets_less() -> None:
    nodes = [node(name, "m", shares={"m": 0.1}) for name in "ab"]
    text = render(nodes, BalancerSettings(), "/d").configuration
    assert " weight " not in text
    assert "roundrobin" not in text


def test_a_leaving_node_is_removed_everywhere() -> None:
    files = render([node("a", "m"), node("b", "m", leaves=True)], BalancerSettings(), "/d")
    assert {one for names in backends(files.configuration).values() for one in names} == {"a"}


def test_the_same_nodes_give_the_same_text() -> None:
    one = render([node("a", "m", "n"), node("b", "m")], BalancerSettings(), "/d")
    assert render([node("b", "m"), node("a", "n", "m")], BalancerSettings(), "/d") == one


def test_only_failed_connections_are_retried() -> None:
    text = render([node("a")], BalancerSettings(), "/d").configuration
    assert re.findall(r"retry-on (.*)", text) == ["conn-failure"]


def test_tls() -> None:
    secure = Node("a", NodeEndpoint("h", 1, True), NodeEndpoint("h", 2, True), frozenset(["m"]))
    with pytest.raises(PyTritonBadParameterError, match=r"h:1 accepts only TLS.*--node-ca"):
        render([secure], BalancerSettings(), "/d")
    text = render(
        [secure], BalancerSettings(node_ca="/ca.pem", certificate="/c.pem"), "/d"
    ).configuration
    verified = "ssl verify required ca-file /ca.pem sni str(h) check-sni h verifyhost h"
    assert f"server a h:1 {verified}\n" in text
    assert f"server a h:2 {verified} alpn h2 no-check track" in text
    assert "bind 127.0.0.1:8000 ssl crt /c.pem alpn h2,http/1.1" in text


@pytest.mark.parametrize("host", ["10.0.0.1", "fd00::1"])
def test_nodes_named_by_ip_need_the_name_of_their_certificates(host: str) -> None:
    secure = Node("a", NodeEndpoint(host, 1, True), None, frozenset(["m"]))
    with pytest.raises(PyTritonBadParameterError, match="--node-name"):
        check_node(secure, BalancerSettings(node_ca="/ca.pem"))
    settings = BalancerSettings(node_ca="/ca.pem", node_name="nodes.example")
    check_node(secure, settings)
    text = render([secure], settings, "/d").configuration
    assert "sni str(nodes.example) check-sni nodes.example verifyhost nodes.example\n" in text


@pytest.mark.parametrize(
    ("settings", "folder"),
    [
        (BalancerSettings(http="0.0.0.0:80 ssl"), "/d"),
        (BalancerSettings(http="host"), "/d"),
        (BalancerSettings(http="h:70000"), "/d"),
        (BalancerSettings(http="", grpc=""), "/d"),
        (BalancerSettings(certificate="/a\nglobal"), "/d"),
        (BalancerSettings(node_name="a) b"), "/d"),
        (BalancerSettings(), "/with space"),
    ],
)
def test_values_that_would_break_the_configuration_are_refused(
    settings: BalancerSettings, folder: str
) -> None:
    with pytest.raises(PyTritonBadParameterError):
        render([], settings, folder)


def test_a_nodes_name_is_escaped() -> None:
    assert server_name(node("tcp://[::1]:7")) == "::1_:7"
    # HAProxy refuses a backend with two servers of one name.
    names = ["tcp://[::1]:7 x", "tcp://[::1]:7_x", "/run/a b", "/run/a_b", "/run/a/b", "a\n"]
    found = [server_name(node(one)) for one in names]
    assert len(set(found)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9._:-]+", one) for one in found)


def reported(**urls: str) -> messages.Status:
    return msgspec.structs.replace(status(), server=msgspec.structs.replace(SERVER, **urls))


@pytest.mark.parametrize(
    ("address", "url", "expected"),
    [
        ("tcp://10.0.0.1:9440", "http://127.0.0.1:8000", NodeEndpoint("10.0.0.1", 8000)),
        ("tcp://10.0.0.1:9440", "http://[::1]:8000", NodeEndpoint("10.0.0.1", 8000)),
        ("tcp://10.0.0.1:9440", "https://10.9.9.9:1", NodeEndpoint("10.9.9.9", 1, True)),
        ("tcp://[fd00::1]:9440", "http://127.0.0.1:8000", NodeEndpoint("fd00::1", 8000)),
        ("/run/x", "http://127.0.0.1:8000", NodeEndpoint("127.0.0.1", 8000)),
        ("/run/x", "", None),
    ],
)
def test_a_nodes_addresses_for_requests(
    address: str, url: str, expected: NodeEndpoint | None
) -> None:
    assert node_of(address, reported(http_url=url)).http == expected


def test_an_unresponsive_node_is_left_to_haproxys_checks() -> None:
    first = update_nodes(
        [],
        [NodeStatus("a", reported(http_url="http://127.0.0.1:1")), NodeStatus("b", error="down")],
    )
    assert [one.name for one in first] == ["a"]
    later = update_nodes(first, [NodeStatus("a", error="down"), NodeStatus("b", reported())])
    assert later[0] == first[0]
    assert [one.name for one in update_nodes(later, [NodeStatus("b", reported())])] == ["b"]


def test_node_data_cannot_inject_directives() -> None:
    names = ["m-1.x_y", "my model", "a\nbackend b", "x{}", ""]
    infos = [messages.ModelInfo(name, 1, "ready", []) for name in names]
    wrong: list[str] = []
    found = node_of("a", msgspec.structs.replace(reported(), models=infos), wrong.append)
    assert found.models == {"m-1.x_y"}
    assert len(wrong) == 4
    assert any("'my model'" in text for text in wrong)


def test_the_routes_of_typed_functions_lead_to_their_models() -> None:
    paths = {"m": "/text/m", "n": "", "my model": "/x", "o": "/v2/health/ready", "p": "/a\nb c"}
    paths |= {"q": "/a b", "r": "r", "s": "/#", "t": "/" + "a" * 400}
    infos = [messages.ModelInfo(name, 1, "ready", [], route=path) for name, path in paths.items()]
    found = node_of("a", msgspec.structs.replace(reported(), models=infos))
    assert found.routes == {"/text/m": "m"}
    nodes = [
        replace(node("a", "n"), routes={"/x": "n"}),
        replace(node("b", "m"), routes={"/x": "m"}),
    ]
    assert table(render(nodes, BalancerSettings(), "/d").models)["/x"] == "m"
    absent = replace(node("a"), unready=frozenset({"m"}), routes={"/x": "m"})
    assert table(render([absent], BalancerSettings(), "/d").models) == {"m": "none", "/x": "m"}
    served = replace(node("b", "n"), routes={"/x": "n"})
    assert table(render([absent, served], BalancerSettings(), "/d").models)["/x"] == "n"


@pytest.mark.parametrize(
    "url", ["http://h x:1", "http://h", "http://h:0", "http://h:x", "http://:1"]
)
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(PyTritonBadParameterError, match="reports the address"):
        node_of("a", reported(http_url=url))
