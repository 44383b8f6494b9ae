"""The built-in byte tokenizer and one trained locally."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from noloco_node.errors import BadData
from noloco_node.training.settings import TokenizerSettings
from noloco_node.training.tokenizer import BYTE_VOCABULARY, build_encoder, byte_tokenizer, load_tokenizer

TEXT = "héllo,\n\tWörld 日本 \x00\x7f!"


def test_byte_encoder_equals_the_exported_tokenizer():
    exported = byte_tokenizer()
    ids = build_encoder(TokenizerSettings()).encode(TEXT)
    assert ids.dtype == np.int32
    assert ids.tolist() == [*exported(TEXT)["input_ids"], exported.eos_token_id]
    assert ids[:-1].tolist() == list(TEXT.encode())
    assert exported.decode(ids[:-1]) == TEXT
    assert len(exported) == BYTE_VOCABULARY


def test_locally_trained_tokenizer_is_used_and_ends_documents(tmp_path):
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Whitespace()
    trained.train_from_iterator(["the cat sat on the mat"] * 9, trainers.BpeTrainer(special_tokens=["<unk>", "</s>"]))
    PreTrainedTokenizerFast(tokenizer_object=trained, eos_token="</s>").save_pretrained(tmp_path)
    encoder = build_encoder(TokenizerSettings(kind="hf", path=str(tmp_path)))
    ids = encoder.encode("the cat")
    assert encoder.vocab_size == trained.get_vocab_size()
    assert ids.tolist() == [*trained.encode("the cat").ids, trained.token_to_id("</s>")]


@pytest.mark.parametrize("settings", [TokenizerSettings("hf", "/no/such/folder"), TokenizerSettings("words")])
def test_missing_tokenizer_is_bad_data(settings):
    with pytest.raises(BadData):
        load_tokenizer(settings)
