"""`noloco-node generate`: text from an exported model."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("model_dir", type=click.Path(path_type=Path, file_okay=False))
@click.option("--prompt", default="", help="Text to continue.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=200, show_default=True, help="New tokens at most.")
@click.option("--temperature", type=click.FloatRange(min=0), default=0.8, show_default=True, help="0 = the likeliest.")
@click.option("--top-k", type=click.IntRange(min=1), default=50, show_default=True, help="Draw among the k likeliest.")
@click.option(
    "--seed", type=click.IntRange(min=0, max=(1 << 63) - 1), default=0, show_default=True, help="Of the draws."
)
@click.option("--device", default="auto", show_default=True, help="auto | cpu | cuda:N")
def generate(
    model_dir: Path, prompt: str, max_tokens: int, temperature: float, top_k: int, seed: int, device: str
) -> None:
    """Sample text from the exported model in MODEL_DIR."""
    from noloco_node.training.generation import generate_text

    text = generate_text(
        model_dir, prompt, new_tokens_max=max_tokens, temperature=temperature, top_k=top_k, seed=seed, device=device
    )
    click.echo(text)
