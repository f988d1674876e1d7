"""Who may do what: an outsider who has the authority's certificate and reaches the address that clients use."""

import asyncio
import re
import socket
import ssl
import subprocess
import sys
from contextlib import closing
from http.client import HTTPSConnection
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'pfedbred[flower]'")

import httpx
from conftest import small_federation
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import ActivateNodeRequest, RegisterNodeFleetRequest
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from support.processes import until

from pfedbred.data import prepared
from pfedbred.flower import certificates, gateway, processes

PATIENCE = 200.0  # seconds; two cores may have much else to do

_APP = """
[project]
name = "evil"
version = "1.0.0"
description = "Leaves a file wherever it runs"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "outsider"
[tool.flwr.app.components]
serverapp = "evil.both:server"
clientapp = "evil.both:client"
"""

_CODE = """
import os, pathlib
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()

@server.main()
def main(grid, context):
    pathlib.Path({folder!r}, "ran-on-the-server").touch()
    while not (nodes := list(grid.get_node_ids())):
        pass
    grid.send_and_receive([Message(RecordDict(), node, "query") for node in nodes], timeout=60)

@client.query()
def query(message, context):
    pathlib.Path({folder!r}, "ran-on-a-client").touch()
    return Message(RecordDict(), reply_to=message)
"""


class Outsider:
    """One who has ``ca.crt``, and reaches one address."""

    def __init__(self, folder: Path, ca: Path, address: str) -> None:
        self.folder, self.ca, self.address = folder, ca, address
        (folder / "app" / "evil").mkdir(parents=True)
        (folder / "app" / "pyproject.toml").write_text(_APP)
        (folder / "app" / "evil" / "__init__.py").touch()
        (folder / "app" / "evil" / "both.py").write_text(_CODE.format(folder=str(folder)))
        certificates.node_key(folder / "key")

    def flwr(self, *arguments: str) -> subprocess.CompletedProcess:
        text = f'[superlink.target]\naddress = "{self.address}"\nroot-certificates = "{self.ca}"\n'
        (self.folder / "config.toml").write_text(text)
        return subprocess.run(
            ["flwr", *arguments],
            env=processes.environment(self.folder),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def ran(self) -> list[str]:
        return sorted(each.name for each in self.folder.glob("ran-on-*"))

    def post(self, path: str) -> tuple[int, bytes]:
        """A request whose path nobody tidies up on the way."""
        host, _, port = self.address.rpartition(":")
        connection = HTTPSConnection(host, int(port), context=ssl.create_default_context(cafile=self.ca), timeout=60)
        with closing(connection):
            connection.request("POST", path, b"", {"content-type": "application/protobuf"})
            reply = connection.getresponse()
            return reply.status, reply.read()

    def as_node(self, call: str, request) -> int:
        """A call of the interface for SuperNodes, signed with a key of one's own; returns the status."""
        private = load_ssh_private_key((self.folder / "key").read_bytes(), None)
        request.public_key = public_key_to_bytes(private.public_key())
        signed = NodeAuthHttpInterceptor(private, private.public_key())
        client = FleetHttpClient.from_server_address(self.address, False, self.ca.read_bytes(), [signed])
        with client, pytest.raises(httpx.HTTPStatusError) as refused:
            getattr(client, call)(request)
        return refused.value.response.status_code


ELSEWHERE = sorted({path for _, path in PROTOBUF_REQUEST_TYPES if not path.startswith("/v1/fleet/")})
ROUNDABOUT = (
    "/v1/fleet/../control/start-run",
    "/v1/fleet/..%2fcontrol%2fstart-run",
    "/v1/fleet/%2e%2e/control/start-run",
    "//v1/control/start-run",
    "/V1/control/start-run",
    "/v1/fleet/start-run/../../control/start-run",
    "/v1/fleet//",
    "/v1/fleet/register-node/../../control/register-node?x=/v1/fleet/register-node",
    "https://127.0.0.1/v1/control/start-run",
    "/docs",
    "/openapi.json",
)


def test_nothing_but_calls_of_supernodes_is_passed_on(capsys):
    """No SuperLink is behind it: what it would pass on gets another answer, after which SuperNodes try again."""
    app = gateway.application(f"127.0.0.1:{processes.free_port()}", ssl.create_default_context())

    async def ask():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://gateway") as client:
            for path in (*ELSEWHERE, *ROUNDABOUT):
                assert (await client.post(path)).status_code == 404, path
            odd = {"host": "gateway/v1/fleet/pull-messages#"}
            assert (await client.post("/v1/control/start-run", headers=odd)).status_code == 404
            assert (await client.get("/v1/fleet/pull-messages")).status_code == 404
            assert (await client.post("/v1/fleet/pull-messages")).status_code == 502

    asyncio.run(ask())
    assert "no reply from the SuperLink: ConnectError" in capsys.readouterr().err


def test_a_gateway_that_cannot_start_is_one_line(tmp_path, call):
    code, _, said = call("flower", "gateway", tmp_path)
    assert code == 2
    assert re.fullmatch(r"pfedbred: cannot read certificates in .*: No such file or directory\n", said)
    certificates.make(tmp_path)
    code, _, said = call("flower", "gateway", tmp_path, "--superlink", "https://hub/v1")
    assert code == 2
    assert said == "pfedbred: the SuperLink's address must be HOST:PORT, not 'https://hub/v1'\n"
    for port in ("99999", "0"):
        code, _, said = call("flower", "gateway", tmp_path, "--superlink", f"hub:{port}")
        assert (code, said) == (2, f"pfedbred: the SuperLink's address must be HOST:PORT, not 'hub:{port}'\n")
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        code, _, said = call("flower", "gateway", tmp_path, "--port", port)
    assert (code, said) == (2, f"pfedbred: cannot listen on 127.0.0.1, port {port}: Address already in use\n")
    code, _, said = call("flower", "gateway", tmp_path, "--host", "nowhere.invalid")
    assert code == 2
    assert re.fullmatch(r"pfedbred: cannot listen on nowhere.invalid, port 9092: [^\n]+\n", said)


@pytest.mark.full
def test_an_outsider_can_neither_submit_code_nor_register_a_node(tmp_path):
    """Then the same is tried where the SuperLink itself listens: there it succeeds, so the attempts are real ones."""
    prepared.save(small_federation((9, 14)), tmp_path / "small.fed")
    authority = certificates.make(tmp_path / "keys")
    with processes.machine(tmp_path, authority) as machine:
        machine.superlink(authenticated=True, lasting=False)
        machine.register(certificates.node_key(tmp_path / "keys" / "clinic"))
        config = {"dataset": str(tmp_path / "small.fed"), "partition-id": 0, "name": "clinic"}
        machine.supernode("clinic", {**config, "home": str(tmp_path / "home")}, tmp_path / "keys" / "clinic")
        outsider = Outsider(tmp_path / "outsider", authority.ca, machine.address)
        assert outsider.flwr("supernode", "register", str(outsider.folder / "key.pub"), "target").returncode
        assert outsider.flwr("run", str(outsider.folder / "app"), "target").returncode
        for path in (*ELSEWHERE, *ROUNDABOUT):
            assert outsider.post(path) == (404, b"this address is for SuperNodes only"), path
        assert outsider.post("/v1/fleet/pull-messages")[0] == 401  # passed on: the SuperLink wants a signature
        assert outsider.as_node("RegisterNode", RegisterNodeFleetRequest()) in (403, 412)
        assert outsider.as_node("ActivateNode", ActivateNodeRequest(heartbeat_interval=30)) in (403, 412)
        assert "refused: POST /v1/control/start-run from 127.0.0.1" in logs(machine, "gateway")
        if sys.platform == "linux":  # another address of this machine, as seen from outside
            with socket.socket() as tried:
                assert tried.connect_ex(("127.0.0.2", int(machine.control.rpartition(":")[2]))) != 0
        assert outsider.ran() == []
        insider = Outsider(tmp_path / "insider", authority.ca, machine.control)
        submitted = insider.flwr("run", str(insider.folder / "app"), "target")
        assert submitted.returncode == 0, submitted.stderr
        assert until(lambda: insider.ran() == ["ran-on-a-client", "ran-on-the-server"], PATIENCE, 0.2), logs(machine)
        assert machine.flwr("supernode", "list", processes.CONNECTION).count("online") == 1


def logs(machine, name="*"):
    return "\n".join(path.read_text(errors="replace") for path in (machine.folder / "logs").glob(f"{name}.log"))
