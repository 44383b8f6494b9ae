"""`noloco-node eval`: held-out perplexity of an exported model, or of checkpoints and each replica path in them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from noloco_node.cli.generation import check_model_dir
from noloco_node.cli.progress import measuring, say
from noloco_node.config.run_spec import RunSpec
from noloco_node.config.spec_file import load_run_spec

if TYPE_CHECKING:
    from noloco_node.training.evaluation import Perplexity

FOLDER = click.Path(path_type=Path)
ROWS_MAX = 256


@click.command("eval")
@click.argument("model_dir", type=FOLDER, required=False)
@click.option("--spec", "spec_file", type=click.Path(path_type=Path), required=True, help="Run spec: names the text.")
@click.option("--checkpoints", "folders", type=FOLDER, multiple=True, help="Instead of MODEL_DIR; may be repeated.")
@click.option("--rows", type=click.IntRange(min=1), default=ROWS_MAX, show_default=True, help="Held-out sequences.")
@click.option("--device", default="auto", show_default=True, help="auto | cpu | cuda:N")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Write the figures to this file; - = stdout."
)
def evaluate(
    model_dir: Path | None, spec_file: Path, folders: tuple[Path, ...], rows: int, device: str, json_file: Path | None
) -> None:
    """Measure perplexity on text that the run never trains on.

    Of the exported MODEL_DIR; or, with --checkpoints, of the average and of every replica path.
    """
    from noloco_node.cli.results import write_json

    if (model_dir is None) == (not folders):
        raise click.UsageError("give either MODEL_DIR or --checkpoints")
    spec = load_run_spec(spec_file)
    figures = _exported(model_dir, spec, rows, device) if model_dir else _checkpoints(folders, spec, rows, device)
    if json_file is not None:
        write_json(json_file, figures)
    if str(json_file) != "-":
        _print(figures)


def _exported(model_dir: Path, spec: RunSpec, rows: int, device: str) -> dict[str, Any]:
    check_model_dir(model_dir)
    say(f"reading {model_dir}")
    from noloco_node.training.device import use_idle_cores
    from noloco_node.training.evaluation import evaluate_exported

    use_idle_cores()
    with measuring() as watch:
        found = evaluate_exported(model_dir, spec.training_settings(), rows_max=rows, device=device, watch=watch)
    return _figures(found)


def _checkpoints(folders: tuple[Path, ...], spec: RunSpec, rows: int, device: str) -> dict[str, Any]:
    from noloco_node.cli.checkpoints import checkpoints_in, of_run

    found = of_run(checkpoints_in(folders), spec)
    files, settings = found.files.values(), spec.training_settings()
    from noloco_node.training.device import use_idle_cores
    from noloco_node.training.evaluation import evaluate_checkpoints

    use_idle_cores()
    with measuring() as watch:
        report = evaluate_checkpoints(files, settings, rows_max=rows, device=device, watch=watch)
    return _figures(report.average) | {
        "averaged_perplexity": report.average.perplexity,
        "replica_perplexities": {str(replica): one.perplexity for replica, one in report.paths.items()},
        "outer_step": found.meta.outer_step,
    }


def _figures(measured: Perplexity) -> dict[str, Any]:
    return {"perplexity": measured.perplexity, "loss": measured.loss, "tokens": measured.tokens}


def _print(figures: dict[str, Any]) -> None:
    click.echo(f"perplexity {figures['perplexity']:.4f} ({figures['loss']:.4f} nats over {figures['tokens']} tokens)")
    for replica, perplexity in figures.get("replica_perplexities", {}).items():
        click.echo(f"replica path {replica}: {perplexity:.4f}")
