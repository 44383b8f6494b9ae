"""Text to token ids and back: a byte-level tokenizer that is built in, or any Hugging Face tokenizer.

Owns the byte vocabulary: id = byte value, 256 = end of document. Must not know where text comes from.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from noloco_node.errors import BadData
from noloco_node.training.settings import TokenizerSettings

END_OF_TEXT = "<|endoftext|>"
BYTE_VOCABULARY = 257


class Encoder(Protocol):
    """`encode` gives int32 ids of one document, its end token included."""

    vocab_size: int

    def encode(self, text: str) -> NDArray[np.int32]: ...


@dataclass(frozen=True, slots=True)
class ByteEncoder:
    """UTF-8 bytes and an end token; equal to `byte_tokenizer()`, some hundred times faster."""

    vocab_size: int = BYTE_VOCABULARY

    def encode(self, text: str) -> NDArray[np.int32]:
        content = text.encode("utf-8", errors="replace")
        ids = np.full(len(content) + 1, BYTE_VOCABULARY - 1, dtype=np.int32)
        ids[:-1] = np.frombuffer(content, dtype=np.uint8)
        return ids


class HuggingFaceEncoder:
    """A tokenizer of transformers; its end-of-text token, if it has one, ends each document."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.vocab_size: int = len(tokenizer)

    def encode(self, text: str) -> NDArray[np.int32]:
        ids = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        end = self._tokenizer.eos_token_id
        return np.asarray(ids if end is None else [*ids, end], dtype=np.int32)


def build_encoder(settings: TokenizerSettings) -> Encoder:
    """Raises BadData when the tokenizer cannot be had."""
    return ByteEncoder() if settings.kind == "byte" else HuggingFaceEncoder(load_tokenizer(settings))


def load_tokenizer(settings: TokenizerSettings) -> Any:
    """The tokenizer as transformers knows it: to be exported with the model, and to generate text."""
    if settings.kind == "byte":
        return byte_tokenizer()
    if settings.kind != "hf":
        raise BadData(f"tokenizer kind {settings.kind!r} is unknown", "use byte or hf")
    from transformers import AutoTokenizer

    local = Path(settings.path).expanduser()
    if settings.path.startswith((".", "/", "~")) and not local.exists():
        raise BadData(f"tokenizer folder {settings.path} does not exist", "check tokenizer.path in the run spec")
    try:
        return AutoTokenizer.from_pretrained(str(local) if local.exists() else settings.path)
    except (OSError, ValueError, KeyError) as error:
        raise BadData(f"tokenizer {settings.path} cannot be loaded: {str(error).splitlines()[0]}") from error


def byte_tokenizer() -> Any:
    """256 byte symbols, no merges, as a transformers tokenizer that needs no download."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {symbol: value for value, symbol in enumerate(_byte_symbols())}
    vocabulary[END_OF_TEXT] = BYTE_VOCABULARY - 1
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END_OF_TEXT, clean_up_tokenization_spaces=False
    )


def _byte_symbols() -> list[str]:
    """The printable stand-in of each byte that byte-level tokenizers share: itself, or a letter from 256 up."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(value) if value in printable else chr(next(others)) for value in range(256)]
