"""The inner step: gradient sums to one AdamW step on the stage's fast weights, on the run's schedule.

Owns Adam's moments (float32, local, never exchanged). Must not know micro-batches, only their summed gradients and
how many tokens they hold. The fused AdamW of torch is used on every device: it is not bit-equal to the loop, so the
choice is one for all replicas.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from noloco_node.core.schedule import learning_rate_factor
from noloco_node.ports import StepResult
from noloco_node.training.settings import OptimizerSettings
from noloco_node.training.stage import Stage

MOMENTS = ("exp_avg", "exp_avg_sq")


class InnerOptimizer:
    """AdamW over the parameters of one stage, in name order; weight decay on matrices only."""

    def __init__(self, stage: Stage, settings: OptimizerSettings) -> None:
        self._settings = settings
        self._parameters = dict(sorted(stage.named_parameters()))
        self._adam = torch.optim.AdamW(
            decay_groups(list(self._parameters.values()), settings.weight_decay),
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
            fused=True,
        )

    def step(self, *, tokens: int, position: int) -> StepResult:
        """Divide by `tokens`, clip by the stage's norm, step at `position`; a non-finite gradient is skipped."""
        learning_rate = self._learning_rate(position)
        gradients = [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]
        if tokens <= 0 or not gradients:
            self.clear_gradients()
            return StepResult(0.0, learning_rate, applied=False)
        for gradient in gradients:
            gradient.div_(tokens)
        norm = float(nn.utils.clip_grad_norm_(self._parameters.values(), self._clip_norm()))
        applied = math.isfinite(norm)
        if applied:
            for group in self._adam.param_groups:
                group["lr"] = learning_rate
            self._adam.step()
        self.clear_gradients()
        return StepResult(norm, learning_rate, applied)

    def skip(self, *, position: int) -> StepResult:
        """Throw the gradients of this step away, as if their norm were not finite."""
        self.clear_gradients()
        return StepResult(math.nan, self._learning_rate(position), applied=False)

    def clear_gradients(self) -> None:
        self._adam.zero_grad(set_to_none=True)

    def reset(self) -> None:
        """Forget all moments: a newcomer's start."""
        self._adam.state.clear()
        self.clear_gradients()

    @property
    def steps(self) -> int:
        """AdamW steps taken, for the bias correction."""
        return max((int(state["step"]) for state in self._adam.state.values()), default=0)

    def moments(self) -> dict[str, dict[str, Tensor]]:
        """Adam's moments: `exp_avg` and `exp_avg_sq`, each by parameter name (empty before the first step)."""
        state = self._adam.state
        return {
            moment: {name: state[p][moment] for name, p in self._parameters.items() if p in state} for moment in MOMENTS
        }

    def load_moments(self, moments: dict[str, dict[str, Tensor]], steps: int) -> None:
        self.reset()
        for name, parameter in self._parameters.items():
            if name not in moments[MOMENTS[0]]:
                continue
            values = {moment: moments[moment][name].to(parameter.device, copy=True) for moment in MOMENTS}
            step = torch.tensor(float(steps), dtype=torch.float32, device=parameter.device)
            self._adam.state[parameter] = {"step": step, **values}

    def _learning_rate(self, position: int) -> float:
        own = self._settings
        return own.learning_rate * learning_rate_factor(position, own.warmup_steps, own.total_steps, own.final_lr_ratio)

    def _clip_norm(self) -> float:
        return self._settings.clip_norm if self._settings.clip_norm > 0 else math.inf


def decay_groups(parameters: list[nn.Parameter], weight_decay: float) -> list[dict[str, object]]:
    """AdamW's parameter groups: matrices decay, norms and biases do not."""
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
