"""What the volunteer chooses about one node. Flag > `NOLOCO_*` variable > `node.toml` > default.

Nothing here changes what is trained; that is the run spec's. Paths become absolute when the config is made.
"""

from __future__ import annotations

import os
import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from noloco_node.core import limits
from noloco_node.core.types import Seat
from noloco_node.discovery.identity import peer_public_key
from noloco_node.discovery.settings import ReachSettings
from noloco_node.ports import StateParts
from noloco_node.training.settings import TrainerPlace

ENV_PREFIX = "NOLOCO_"
LISTEN_PORT = 31337
METRICS_PORT = 9464
P2P_START_TIMEOUT_S = 60.0
DEVICE_PATTERN = r"^(auto|cpu|cuda(:\d{1,3})?)$"
DEVICES_PATTERN = re.compile(r"cpu|cuda(:\d{1,3})?")
ALL_DEVICES = "all"
SEAT_PATTERN = r"^(auto|\d{1,5}\.\d{1,5})$"
ADDRESS_PATTERN = re.compile(r"^/(ip4|ip6|dns|dns4|dns6)/[^/\s]+/(tcp|udp)/\d{1,5}(/[^\s]*)?$")
PATH_FIELDS = ("spec", "data_dir", "identity_file", "peer_list")

Words = Annotated[tuple[str, ...], NoDecode]  # text is split at commas and spaces


def default_data_dir() -> Path:
    """Per user, never relative to the working directory: the key must be found again."""
    base = os.environ.get("XDG_DATA_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".local" / "share") / "noloco-node"


class NodeFile(TomlConfigSettingsSource):
    """`node.toml`. Relative paths in it start at its own folder, so that the working directory changes nothing."""

    def __call__(self) -> dict[str, Any]:
        values = super().__call__()
        if isinstance(self.toml_file_path, Path):
            folder = self.toml_file_path.absolute().parent
            values |= {key: folder / Path(values[key]).expanduser() for key in PATH_FIELDS if key in values}
        return values


class NodeConfig(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True, env_ignore_empty=True)

    spec: Path = Field(Path("swarm.toml"), description="run spec that all nodes of the run share")
    data_dir: Path = Field(default_factory=default_data_dir, description="identity, checkpoints, cache")
    identity_file: Path | None = Field(None, description="ed25519 key; default DATA_DIR/identity.key")
    device: str = Field("auto", description="auto | cpu | cuda | cuda:N", pattern=DEVICE_PATTERN)
    devices: Words = Field((), description="all | cuda:0,cuda:1 ...: a node, a seat and a process for each device")
    seat: str = Field("auto", description='"auto" or "stage.replica"', pattern=SEAT_PATTERN)
    threads: int = Field(0, description="CPU threads for training; 0 = torch's choice", ge=0, le=1024)
    listen: Words = Field((f"/ip4/0.0.0.0/tcp/{LISTEN_PORT}",), description="addresses to listen on", min_length=1)
    announce: Words = Field((), description="addresses to publish instead of those found")
    initial_peers: Words = Field((), description="peers to join by, /ip4/.../tcp/.../p2p/...; none = first node")
    peer_list: Path | None = Field(None, description="list of peers, signed by the run's owner; read again on change")
    deny_peers: Words = Field((), description="peer ids that this node neither serves nor counts")
    reachability: Literal["auto", "public", "private"] = Field("auto", description="can others dial this node?")
    relay: bool = Field(True, description="reach and be reached through relays")
    port_map: bool = Field(False, description="ask the router for a port (UPnP, NAT-PMP)")
    allow_private: bool = Field(False, description="publish private and loopback addresses as well")
    metrics_address: str = Field("127.0.0.1", description="address of /metrics, /healthz, /readyz, /status.json")
    metrics_port: int = Field(METRICS_PORT, description="its port; 0 = a free one", ge=0, le=65535)
    log_format: Literal["auto", "text", "json"] = Field("auto", description="auto: text on a terminal, else JSON lines")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level that is logged")
    p2p_start_timeout_s: float = Field(P2P_START_TIMEOUT_S, description="for the libp2p daemon to start", gt=0)
    stop_grace_s: float = Field(limits.STOP_GRACE_S, description="a stop ends the process within", gt=0)
    reinit_stage: bool = Field(False, description="draw the stage from the seed although it has trained")
    compile: bool = Field(False, description="torch.compile of the layers; needs a C++ compiler, on GPUs Triton")
    activation_checkpointing: bool = Field(
        False, description="keep only each layer's input and compute it again in backward: less memory, a third slower"
    )
    memory_max_gib: float = Field(0.0, description="memory of the device for the stage; 0 = what is free", ge=0)
    fetch_moments: bool = Field(False, description="take over a donor's Adam moments as well (twice the download)")
    state_uploads_max: int = Field(
        limits.STATE_UPLOADS_MAX,
        description="newcomers served at once; one place is kept for holders of a seat",
        ge=0,
        le=64,
    )

    @field_validator("devices", "listen", "announce", "initial_peers", "deny_peers", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            value = (value,)
        if isinstance(value, list | tuple):
            return tuple(part for item in value for part in re.split(r"[,\s]+", str(item)) if part)
        return value

    @field_validator("listen", "announce", "initial_peers")
    @classmethod
    def _are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            if not ADDRESS_PATTERN.match(address):
                raise ValueError(f"{address!r} is not a multiaddr such as /ip4/203.0.113.7/tcp/{LISTEN_PORT}")
        return value

    @field_validator("devices")
    @classmethod
    def _are_devices(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value if value != (ALL_DEVICES,) else ():
            if not DEVICES_PATTERN.fullmatch(name):
                raise ValueError(f'{name!r} is not "{ALL_DEVICES}", cpu, cuda or cuda:N')
        gpus = ["cuda:0" if name == "cuda" else name for name in value if name != "cpu"]
        if len(set(gpus)) < len(gpus):
            raise ValueError("a device is named twice")
        return value

    @field_validator("initial_peers")
    @classmethod
    def _name_their_peer(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            if not re.search(r"/p2p/[1-9A-HJ-NP-Za-km-z]{40,60}$", address):
                raise ValueError(f"{address!r} must end in /p2p/<peer id>")
        return value

    @field_validator("deny_peers")
    @classmethod
    def _are_peer_ids(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for peer in value:
            try:
                peer_public_key(peer)
            except ValueError as error:
                raise ValueError(f"{peer!r} is no peer id: {error}") from error
        return value

    @field_validator("metrics_address")
    @classmethod
    def _is_ip(cls, value: str) -> str:
        return str(ip_address("127.0.0.1" if value == "localhost" else value))

    @field_validator("spec", "data_dir", "identity_file", "peer_list")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        return value and Path(os.path.abspath(value.expanduser()))

    @model_validator(mode="after")
    def _identity_in_data_dir(self) -> Self:
        if self.identity_file is None:
            object.__setattr__(self, "identity_file", self.data_dir / "identity.key")
        return self

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        """What only a single node can have does not go with several devices."""
        if not self.devices:
            return self
        if self.device != "auto":
            raise ValueError("--device and --devices do not go together")
        if self.seat != "auto":
            raise ValueError("--seat is one node's; with --devices each finds a vacant seat by itself")
        if self.identity_file != self.data_dir / "identity.key":
            raise ValueError("--identity-file is one node's; with --devices each has its own key in its data directory")
        return self

    @property
    def wanted_seat(self) -> Seat | None:
        """None: any vacant seat."""
        if self.seat == "auto":
            return None
        stage, replica = self.seat.split(".")
        return Seat(int(stage), int(replica))

    @property
    def fetched_parts(self) -> StateParts:
        return StateParts.SLOW_AND_MOMENTS if self.fetch_moments else StateParts.SLOW

    def trainer_place(self, seat: Seat, checkpoint_dir: Path) -> TrainerPlace:
        return TrainerPlace(
            seat=seat,
            device=self.device,
            checkpoint_dir=checkpoint_dir,
            threads=self.threads,
            fetched_parts=self.fetched_parts,
            compile=self.compile,
            activation_checkpointing=self.activation_checkpointing,
        )

    def reach_settings(self) -> ReachSettings:
        """A node that cannot be dialled keeps nothing for the DHT (client mode)."""
        return ReachSettings(
            relay=self.relay,
            auto_relay=self.relay and self.reachability != "public" and bool(self.initial_peers),
            auto_nat=self.reachability == "auto",
            port_map=self.port_map,
            force="" if self.reachability == "auto" else self.reachability,
            client_mode=self.reachability == "private",
            allow_private=self.allow_private,
        )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, NodeFile(settings_cls)
