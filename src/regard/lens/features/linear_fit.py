"""Ridge and logistic regression on standardised features, and their cross-validation.

    ridge      min ||y - X w - b||² + penalty ||w||²                     in closed form
    logistic   min sum of cross-entropies + penalty/2 ||W||²             by L-BFGS; two classes have one weight vector

The same problems, b without a penalty, as `Ridge(alpha=penalty)` and `LogisticRegression(C=1/penalty)` of scikit-learn.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

STEPS = 200  # of L-BFGS, at most


@dataclass(frozen=True, eq=False)
class LinearMap:
    """W x + b for features as they are: one row a class, or one row of two classes and of a number."""

    weight: Tensor  # (outputs, D)
    bias: Tensor  # (outputs,)
    classes: int  # 0: it makes a number

    def predict(self, x: Tensor) -> Tensor:
        """Class numbers, or numbers: (…, D) -> (…)."""
        made = x.to(self.weight.dtype) @ self.weight.mT + self.bias
        if not self.classes:
            return made[..., 0]
        return (made[..., 0] > 0).long() if self.classes == 2 else made.argmax(-1)


def fit_map(x: Tensor, y: Tensor, classes: int, penalty: float) -> LinearMap:
    """Fit on features (M, D) and labels (M,); features are standardised by their mean and deviation here."""
    mean, std = x.mean(0), x.std(0, correction=0)
    std = torch.where(std > 1e-12 * mean.abs().clamp(min=1), std, 1.0)  # a constant feature is zero, not noise
    scaled = (x - mean) / std
    weight, bias = fit_logistic(scaled, y, classes, penalty) if classes else fit_ridge(scaled, y, penalty)
    weight = weight / std
    return LinearMap(weight, bias - weight @ mean, classes)


def fit_ridge(x: Tensor, y: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """(X'X + penalty) w = X'(y - mean y), for features whose mean is zero; with fewer examples than features in its
    dual form, w = X'(XX' + penalty)^-1 (y - mean y)."""
    target, wide = (y - y.mean())[:, None], x.shape[1] > x.shape[0]
    gram = x @ x.mT if wide else x.mT @ x
    gram.diagonal().add_(max(penalty, 1e-9 * float(gram.diagonal().mean())))
    solved = x.mT @ torch.linalg.solve(gram, target) if wide else torch.linalg.solve(gram, x.mT @ target)
    return solved.mT, y.mean()[None]


def fit_logistic(x: Tensor, y: Tensor, classes: int, penalty: float) -> tuple[Tensor, Tensor]:
    """The minimum by L-BFGS, from zero; the loss is convex, so there is one."""
    outputs, count = 1 if classes == 2 else classes, len(x)
    weight = torch.zeros(outputs, x.shape[1], dtype=x.dtype, requires_grad=True)
    bias = torch.zeros(outputs, dtype=x.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=STEPS, history_size=20, tolerance_grad=1e-7, tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> Tensor:
        optimizer.zero_grad()
        made = x @ weight.mT + bias
        loss = (
            F.binary_cross_entropy_with_logits(made[:, 0], y.to(x.dtype)) if outputs == 1 else F.cross_entropy(made, y)
        ) + penalty / (2 * count) * weight.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    return weight.detach(), bias.detach()


# ---------------------------------------------------------------- cross-validation


def cross_validate(x: Tensor, y: Tensor, folds: Tensor, classes: int, penalty: float) -> tuple[Tensor, Tensor]:
    """The score on each fold of the map fitted on the others, and of the best constant of the others."""
    scores, baseline = [], []
    for fold in range(int(folds.max()) + 1):
        test = folds == fold
        found, constant = fit_map(x[~test], y[~test], classes, penalty), best_constant(y[~test], classes)
        scores.append(score(found.predict(x[test]), y[test], y[~test], classes))
        baseline.append(score(constant.expand(int(test.sum())), y[test], y[~test], classes))
    return torch.tensor(scores), torch.tensor(baseline)


def best_constant(y: Tensor, classes: int) -> Tensor:
    return y.bincount(minlength=classes).argmax() if classes else y.mean()


def score(predicted: Tensor, y: Tensor, trained: Tensor, classes: int) -> float:
    """Accuracy; or R2, 1 - the squared error over that of the mean."""
    if classes:
        return float((predicted == y).double().mean())
    total = (y - y.mean()).square().sum()
    return float(1 - (predicted - y).square().sum() / total) if float(total) else float("nan")
