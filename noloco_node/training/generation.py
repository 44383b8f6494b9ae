"""Samples text from an exported model directory, with nothing but Hugging Face's own loaders."""

from __future__ import annotations

from pathlib import Path

import torch

from noloco_node.errors import BadModel
from noloco_node.training.device import memory_guard, resolve_device


def generate_text(
    model_dir: Path,
    prompt: str,
    *,
    new_tokens_max: int = 200,
    temperature: float = 0.8,
    top_k: int = 50,
    seed: int = 0,
    device: str = "auto",
) -> str:
    """`prompt` and its continuation; temperature 0 takes the likeliest token. Raises BadModel, DeviceFailed."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    if not (model_dir / "config.json").is_file():
        raise BadModel(f"{model_dir} is not a model directory", "name an exported one")
    logging.disable_progress_bar()  # of the weights, which are read in a moment
    where = resolve_device(device)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir).to(where).eval()
    ids = torch.tensor([tokenizer(prompt)["input_ids"] or [tokenizer.eos_token_id]], device=where)
    torch.manual_seed(seed)
    sampling = {"do_sample": True, "temperature": temperature, "top_k": top_k} if temperature > 0 else {}
    with torch.no_grad(), memory_guard():
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens_max,
            pad_token_id=tokenizer.eos_token_id,
            **sampling,
        )
    return prompt + tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)
