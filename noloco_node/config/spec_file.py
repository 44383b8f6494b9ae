"""Reads and writes `swarm.toml`: broken TOML, unknown keys and impossible values each become one clear line.

A file that names an owner is read only with the owner's signature (`config.ownership`).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from noloco_node.config.model_config import read_model_config
from noloco_node.config.ownership import SECTION, checked_signature, signature_section
from noloco_node.config.run_spec import RunSpec
from noloco_node.core import limits
from noloco_node.errors import BadSignature, BadSpec, VersionMismatch

CAUSES_MAX = 3
FILE_BYTES_MAX = limits.MIB
INTEGER_END = 1 << 63
ADVICE = "correct the run spec; `noloco-node swarm new` writes a valid one to compare with"


def load_run_spec(path: Path | str) -> RunSpec:
    """Raises BadSpec; VersionMismatch when the file is of another protocol version; BadSignature when it names an
    owner who has not signed it.
    """
    path = Path(path).absolute()
    try:
        return parse_run_spec(read_text(path), path.parent)
    except (BadSpec, BadSignature) as error:
        raise type(error)(f"{path}: {error.cause}", error.advice) from error


def parse_run_spec(text: str, folder: Path) -> RunSpec:
    """`folder`: where relative paths start."""
    spec, section = parse_unsigned(text, folder)
    spec._signature = checked_signature(spec, section)
    return spec


def parse_unsigned(text: str, folder: Path) -> tuple[RunSpec, object]:
    """For whoever is about to sign it: the spec, and what stands in `[signature]`, not looked at."""
    try:
        table = tomllib.loads(text)
        _check_numbers(table)
    except tomllib.TOMLDecodeError as error:
        raise BadSpec(f"not valid TOML: {error}", ADVICE) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; brackets in brackets in ...
        raise BadSpec(f"not readable as TOML: {error}", ADVICE) from error
    section = table.pop(SECTION, None)
    _check_version(table)
    return build_run_spec(_embed_model(table, folder), folder), section


def build_run_spec(table: Mapping[str, Any], folder: Path) -> RunSpec:
    """From a table of sections (model config embedded). Raises BadSpec."""
    try:
        spec = RunSpec.model_validate(table)
    except ValidationError as error:
        raise BadSpec(_causes(error), ADVICE) from None
    spec._folder = folder.absolute()
    return spec


def dump(spec: RunSpec, config_file: str = "") -> str:
    """TOML text with a comment beside every key; parsing it gives the same run id.

    `config_file` names the model config instead of writing it out, which a null in it makes necessary.
    """
    if not config_file and None in spec.model.values():
        raise BadSpec("TOML cannot hold the nulls of this model config", "name it by [model] config_file")
    parts = [f"# Run spec of {spec.swarm.name}: every node of the run needs this very file.\n"]
    for name in RunSpec.model_fields:
        value = getattr(spec, name)
        parts.append(_section(name, value) if isinstance(value, BaseModel) else _model(value, config_file))
    if spec.signature:
        parts.append(signature_section(spec.signature))
    return "\n".join(parts)


def read_text(path: Path) -> str:
    """Raises BadSpec."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        text = content.decode("utf-8")
    except OSError as error:
        raise BadSpec(f"cannot be read: {error.strerror}", "name the run spec with --spec") from error
    except UnicodeDecodeError as error:
        raise BadSpec("not valid TOML: not UTF-8 text", ADVICE) from error
    if len(content) > FILE_BYTES_MAX:
        raise BadSpec(f"larger than {FILE_BYTES_MAX} bytes", ADVICE)
    return text


def _check_numbers(value: Any) -> None:
    """TOML's integers have 64 bits; Python's reader takes any."""
    if isinstance(value, int) and not -INTEGER_END <= value < INTEGER_END:
        raise BadSpec("not valid TOML: an integer of more than 64 bits", ADVICE)
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _check_numbers(item)


def _check_version(table: Mapping[str, Any]) -> None:
    swarm = table.get("swarm")
    version = swarm.get("protocol_version") if isinstance(swarm, dict) else None
    if isinstance(version, int) and version != limits.PROTOCOL_VERSION:
        newer = "update noloco-node" if version > limits.PROTOCOL_VERSION else "use an older noloco-node"
        raise VersionMismatch(
            f"the run speaks protocol version {version}, this noloco-node {limits.PROTOCOL_VERSION}", newer
        )


def _embed_model(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    model = table.get("model")
    if not isinstance(model, dict) or "config_file" not in model:
        return table
    name = model["config_file"]
    if len(model) > 1:
        raise BadSpec("[model] holds config_file and other keys: only one way to give the model", ADVICE)
    if not isinstance(name, str):
        raise BadSpec("[model] config_file must be a path in quotes", ADVICE)
    try:
        return table | {"model": read_model_config(folder / name)}
    except ValueError as error:
        raise BadSpec(str(error), ADVICE) from error


def _causes(error: ValidationError) -> str:
    found = [_cause(detail) for detail in error.errors(include_url=False)]
    more = f"; and {len(found) - CAUSES_MAX} more" if len(found) > CAUSES_MAX else ""
    return "; ".join(found[:CAUSES_MAX]) + more


def _cause(detail: ErrorDetails) -> str:
    location = tuple(str(part) for part in detail["loc"])
    place = _place(location)
    match detail["type"]:
        case "extra_forbidden":
            return f"{place} is unknown{_suggestion(location)}"
        case "missing":
            return f"{place} is missing"
        case "value_error":
            return str(detail["ctx"]["error"])
        case _:
            return f"{place} = {_shown(detail['input'])}: {detail['msg'][:1].lower()}{detail['msg'][1:]}"


def _place(location: tuple[str, ...]) -> str:
    if not location:
        return "the run spec"
    return f"[{location[0]}]" + (" " + ".".join(location[1:]) if location[1:] else "")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _suggestion(location: tuple[str, ...]) -> str:
    section, key = (location[0], location[-1]) if len(location) > 1 else ("", location[0])
    here = _keys().get(section, []) if section else list(_keys())
    near = get_close_matches(key, here, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    homes = [f"[{name}]" for name, keys in _keys().items() if key in keys]
    return f"; it belongs into {homes[0]}" if homes else ""


def _keys() -> dict[str, list[str]]:
    """Section -> its keys; the model's are Hugging Face's."""
    fields = {name: field.annotation for name, field in RunSpec.model_fields.items()}
    return {
        name: list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []
        for name, kind in fields.items()
    }


def _section(name: str, section: BaseModel) -> str:
    lines = [f"[{name}]"]
    for key, field in type(section).model_fields.items():
        lines.append(f"{key} = {_toml(getattr(section, key))}".ljust(34) + f"  # {field.description}")
    return "\n".join(lines) + "\n"


def _model(model: Mapping[str, Any], config_file: str) -> str:
    body = {"config_file": config_file} if config_file else model
    head = "[model]  # a Hugging Face config: written out, or config_file = a path relative to this file"
    return "\n".join([head, *(f"{_key(key)} = {_toml(value)}" for key, value in body.items())]) + "\n"


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else json.dumps(key)


def _toml(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return "[" + ", ".join(_toml(item) for item in value) + "]"
        case dict():
            return "{ " + ", ".join(f"{_key(key)} = {_toml(item)}" for key, item in value.items()) + " }"
        case _:
            raise BadSpec(f"TOML cannot hold {_shown(value)}", "name the model config by [model] config_file")
