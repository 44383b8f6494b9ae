from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noloco_node.discovery.addresses import (
    Address,
    address_from_bytes,
    parse_address,
    parse_announced,
    parse_listen,
    parse_peer,
    worth_announcing,
)

PEER = "12D3KooWQY9i4vgkKea7aNZ3UFN88MTQox1zCtZtMKPLzcyspScC"
OTHER = "12D3KooWJv9y8MPiiubY5ia6P4LvMNi5TWrLfABvyMeq3HKzFc5z"


@pytest.mark.parametrize(
    "text",
    [
        "/ip4/198.51.100.7/tcp/4001",
        "/ip6/2001:db8::7/udp/4001/quic-v1",
        "/dns4/node-1.example.org/tcp/443/wss",
        f"/ip4/127.0.0.1/tcp/0/p2p/{PEER}",
        f"/ip4/198.51.100.7/tcp/4001/p2p/{PEER}/p2p-circuit/p2p/{OTHER}",
        f"/dnsaddr/example.org/p2p/{PEER}",
    ],
)
def test_address_survives_its_binary_form(text: str) -> None:
    assert str(address_from_bytes(parse_address(text).to_bytes())) == text


def test_binary_form_is_the_published_one() -> None:
    assert parse_address("/ip4/127.0.0.1/udp/1234").to_bytes().hex() == "047f000001910204d2"
    assert parse_address("/ip4/127.0.0.1/tcp/80/ws").to_bytes().hex() == "047f000001060050dd03"


@pytest.mark.parametrize(
    "text",
    [
        *("", "/", "//", "ip4/1.2.3.4/tcp/1", "/ip4/1.2.3.4", "/ip4/1.2.3.4/tcp", "/ip4/1.2.3/tcp/1", "/tcp/1"),
        *("/ip4/1.2.3.4/tcp/65536", "/ip4/1.2.3.4/tcp/-1", "/ip4/1.2.3.4/tcp/1/", "/ip4/1.2.3.4/tcp/01"),
        *("/unix/tmp/x", "/ip4/1.2.3.4/tcp/1/p2p/xyz", "/dns4/a b/tcp/1", "/dns4//tcp/1", "/ip4/1.2.3.4/tcp/1" * 20),
        *("/ip4/1.2.3.4/tcp/1/p2p/" + "1" * 40, "/dns4/exämple/tcp/1", "/ip4/1.2.3.4/tcp/٣"),
    ],
)
def test_text_that_cannot_be_dialled_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_address(text)


@given(st.text(max_size=100) | st.from_regex(r"/(ip4|ip6|dns4|tcp|p2p|ws)/[0-9a-zA-Z.:/]{0,40}", fullmatch=True))
def test_any_text_is_parsed_or_refused_cleanly(text: str) -> None:
    try:
        address = parse_address(text)
    except ValueError:
        return
    address_from_bytes(address.to_bytes())


@given(st.binary(max_size=60))
def test_any_bytes_are_parsed_or_refused_cleanly(encoded: bytes) -> None:
    try:
        address_from_bytes(encoded)
    except ValueError:
        return


def test_listen_address_may_be_host_and_port() -> None:
    assert str(parse_listen("0.0.0.0:4001")) == "/ip4/0.0.0.0/tcp/4001"
    assert str(parse_listen("[::]:4001")) == "/ip6/::/tcp/4001"
    assert str(parse_listen("/ip4/0.0.0.0/tcp/0")) == "/ip4/0.0.0.0/tcp/0"
    for text in ("4001", "localhost:1", "0.0.0.0:", "0.0.0.0:x"):
        with pytest.raises(ValueError):
            parse_listen(text)


def test_initial_peer_must_name_the_peer() -> None:
    assert parse_peer(f"/ip4/198.51.100.7/tcp/4001/p2p/{PEER}").peer == PEER
    with pytest.raises(ValueError):
        parse_peer("/ip4/198.51.100.7/tcp/4001")


def test_announced_port_must_be_known() -> None:
    with pytest.raises(ValueError):
        parse_announced("/ip4/198.51.100.7/tcp/0")


def announced(*texts: str, loopback: bool = False, allow_private: bool = False) -> list[str]:
    addresses: list[Address] = [parse_address(text) for text in texts]
    return [str(item) for item in worth_announcing(addresses, loopback=loopback, allow_private=allow_private)]


def test_loopback_and_link_local_are_not_announced() -> None:
    texts = ("/ip4/127.0.0.1/tcp/1", "/ip6/fe80::1/tcp/1", "/ip4/172.17.0.1/tcp/1", "/ip4/8.8.8.8/tcp/1")
    assert announced(*texts) == ["/ip4/8.8.8.8/tcp/1"]
    assert announced(*texts, allow_private=True) == ["/ip4/8.8.8.8/tcp/1", "/ip4/172.17.0.1/tcp/1"]


def test_private_addresses_are_announced_where_nothing_better_is_known() -> None:
    assert announced("/ip4/127.0.0.1/tcp/1", "/ip4/192.168.1.2/tcp/1") == ["/ip4/192.168.1.2/tcp/1"]
    assert announced("/ip4/127.0.0.1/tcp/1", loopback=True) == ["/ip4/127.0.0.1/tcp/1"]
