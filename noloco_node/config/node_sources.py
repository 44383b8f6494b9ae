"""Brings a node's configuration together from flags, variables and file; every fault is one line, BadConfig."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import SettingsConfigDict

from noloco_node.config.node_config import ENV_PREFIX, NodeConfig
from noloco_node.errors import BadConfig

CONFIG_VARIABLE = "NOLOCO_CONFIG"  # names the file itself, so it is no field
CAUSES_MAX = 3
ADVICE = "see `noloco-node run --help`; a flag outranks a variable, a variable the file"


def load_node_config(flags: Mapping[str, Any] | None = None, file: Path | str | None = None) -> NodeConfig:
    """`flags`: field name -> value; None and () mean not given. `file` defaults to $NOLOCO_CONFIG, else none."""
    check_variables(os.environ)
    given = {name: value for name, value in (flags or {}).items() if value is not None and value != ()}
    path = _file(file)
    kind = NodeConfig if path is None else _with_file(path)
    try:
        return kind(**given)
    except ValidationError as error:
        raise BadConfig(_causes(error, path), ADVICE) from None
    except tomllib.TOMLDecodeError as error:
        raise BadConfig(f"{path}: not valid TOML: {error}", ADVICE) from error
    except (OSError, UnicodeDecodeError, TypeError) as error:
        raise BadConfig(f"{path}: cannot be read: {error}", ADVICE) from error


def check_variables(environ: Mapping[str, str]) -> None:
    """A NOLOCO_ variable that names nothing is a slip, not a wish: refuse it and name the nearest."""
    known = [CONFIG_VARIABLE, *(variable(name) for name in NodeConfig.model_fields)]
    for name in environ:
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in known:
            near = get_close_matches(name.upper(), known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise BadConfig(f"variable {name} is unknown{hint}", f"known: {', '.join(known)}")


def variable(field: str) -> str:
    return ENV_PREFIX + field.upper()


def as_variables(config: NodeConfig) -> dict[str, str]:
    """The variables that make the same configuration in a process of its own; what is None is left out."""
    found = {name: getattr(config, name) for name in NodeConfig.model_fields}
    return {variable(name): _as_text(value) for name, value in found.items() if value is not None}


def _as_text(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case tuple():
            return ",".join(value)
        case _:
            return str(value)


def flag(field: str) -> str:
    return "--" + field.replace("_", "-")


def _file(file: Path | str | None) -> Path | None:
    named = file or os.environ.get(CONFIG_VARIABLE)
    if not named:
        return None
    path = Path(named).expanduser().absolute()
    if not path.is_file():
        raise BadConfig(f"{path}: no such file", f"correct --config or {CONFIG_VARIABLE}")
    return path


def _with_file(path: Path) -> type[NodeConfig]:
    return type(
        "NodeConfig", (NodeConfig,), {"__module__": __name__, "model_config": SettingsConfigDict(toml_file=path)}
    )


def _causes(error: ValidationError, path: Path | None) -> str:
    found = [_cause(detail, path) for detail in error.errors(include_url=False)]
    more = f"; and {len(found) - CAUSES_MAX} more" if len(found) > CAUSES_MAX else ""
    return "; ".join(found[:CAUSES_MAX]) + more


def _cause(detail: ErrorDetails, path: Path | None) -> str:
    if not detail["loc"]:  # of several fields together
        return str(detail["ctx"]["error"]) if "error" in detail.get("ctx", {}) else detail["msg"]
    field = str(detail["loc"][0])
    if detail["type"] == "extra_forbidden":
        near = get_close_matches(field, list(NodeConfig.model_fields), n=1)
        return f"{path or 'flags'}: key {field!r} is unknown" + (f"; did you mean {near[0]!r}?" if near else "")
    message = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else detail["msg"]
    value = repr(detail["input"])
    return f"{flag(field)} / {variable(field)} / {field} in {path or 'node.toml'} = {value[:80]}: {_lower(message)}"


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]
