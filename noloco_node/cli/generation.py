"""`noloco-node generate`: text from an exported model."""

from __future__ import annotations

from pathlib import Path

import click

from noloco_node.cli.progress import say
from noloco_node.errors import BadModel

EXPORT_ADVICE = "export one first: noloco-node export --checkpoints DATA_DIR --out MODEL_DIR"


@click.command()
@click.argument("model_dir", type=click.Path(path_type=Path))
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
    check_model_dir(model_dir)
    say(f"reading {model_dir}")
    from noloco_node.training.device import use_idle_cores
    from noloco_node.training.generation import generate_text

    use_idle_cores()
    text = generate_text(
        model_dir, prompt, new_tokens_max=max_tokens, temperature=temperature, top_k=top_k, seed=seed, device=device
    )
    click.echo(text)


def check_model_dir(model_dir: Path) -> None:
    """Raises BadModel, before anything heavy is imported."""
    if not model_dir.is_dir():
        raise BadModel(f"there is no folder {model_dir}", EXPORT_ADVICE)
    if not (model_dir / "config.json").is_file():
        raise BadModel(f"{model_dir} is not a model directory: it holds no config.json", EXPORT_ADVICE)
