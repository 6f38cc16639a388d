"""Classification by the likelihood of noisy signs: logistic, probit, Laplace noise."""

from __future__ import annotations

from typing import Any

from distrff.errors import InputError
from distrff.estimators.margin_machine import MarginMachine
from distrff.estimators.margin_options import MarginOptions, margin_options
from distrff.estimators.options import one_of, positive_number
from distrff.features.base import FeatureMap
from distrff.losses import NOISES


class KernelLikelihoodClassifier(MarginMachine):
    """Classifier by maximum likelihood of y = sign(f(x) + noise), with a penalty on f.

    Minimises C·Σ s_i·(−log Ψ(y_i·f(x_i)/σ)) + ½‖w‖² over f(x) = ⟨w, z(x)⟩ + b, with labels coded as
    ±1 and Ψ the distribution function of the noise. One Gram sweep gives the preconditioner,
    then a few light sweeps of L-BFGS close the duality gap, which is the certificate of the
    answer. More than two classes are one against the rest each, all in the same sweeps.

    Parameters
    ----------
    features : FeatureMap, optional
        Default: `FourierFeatures()`. A clone is fitted.
    C : float or "cv"
        Weight of the likelihood against the penalty, from 1e-50 to 1e50, or the value of least held-out
        loss. C and `sigma` are redundant: up to the scale of f, (C, σ) is the machine of (C/σ², 1).
    noise : {"logistic", "probit", "laplace"}
    sigma : float
        Scale of the noise.
    multi_class : {"ovr", "softmax"}
        One machine a class against the rest, or for logistic noise the loss log Σ_j exp(f_j/σ) − f_c/σ
        of a row of class c, shared by all; of two classes there is one machine in any case.
    Cs : sequence of float, optional
        Grid for "cv"; default: λ = 1/(C·Σs·mean‖z‖²) from 1e-1 to 1e-6, a value a decade.
    cv : int
        Folds of the grid; its machines are solved to a gap of `tol`, at least 1e-2.
    fold_by : {"hash", "contiguous"}
    class_weight : None, "balanced" or dict of label to weight
        Multiplies the weights of the rows of each class, the same in all machines.
    fit_intercept : bool
        The intercept is not penalised.
    scale : {"none", "standard"}
    dtype : {"auto", "float32", "float64"}
        Of the features; sums are float64. "auto" is float32 for columns that are so, or standardised with a
        `tol` of 1e-4 or more; else float64.
    solver : {"auto", "lbfgs", "sgd"}
        "sgd" needs no Gram and rows in no order; it is not for softmax. "auto" is "lbfgs", or "sgd"
        where the Gram does not fit in the workers' memory.
    tol : float
        Largest relative duality gap, (primal − dual)/max(|primal|, |dual|), of any class. Below
        about 1e-6 it takes dtype="float64". For softmax ‖∇‖ relative to its norm at zero; for "sgd" the
        least relative fall of the objective.
    max_sweeps : int, optional
        Light sweeps at most, for each C; default 200.
    random_state : int or None
        None draws a seed, recorded as `seed_`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    C_ : float
        As given or chosen.
    cv_score_, cv_results_ : float and dict, with C="cv"
        Mean loss of held-out rows: the least, and of each C and fold.
    coef_ : ndarray of shape (1 or n_classes, n_features)
    intercept_ : ndarray of shape (1 or n_classes,)
    rkhs_norm_ : float or ndarray of shape (n_classes,)
        ‖w‖₂, the norm of f under the approximate kernel.
    features_ : FeatureMap
        The fitted clone.
    report_ : FitReport
        With `primal`, `dual` and `duality_gap`, of the class of largest gap.
    plan_ : Plan
    n_features_in_ : int
    feature_names_in_ : ndarray of str, where columns have names
    seed_ : int

    Notes
    -----
    If `max_sweeps` or rounding end it first, a `ConvergenceWarning` says so and the best machine is
    kept; so is it when the light sweeps are interrupted. No machine's objective is above that of the best
    constant, w = 0. n·(2dD + D²) flops for the Gram,
    n·(2dD + 6Dk) and n·D cosines a light sweep, D³/3 for each factor. Where ten light sweeps were
    not enough for a smooth loss and two classes, or the first step shows that the sample misses rows,
    another pass makes the Hessian. It is that of all rows, and made again for each step, where the products
    of those that bend take no longer than four light sweeps; else of a sample, three times at most.
    """

    def __init__(
        self,
        features: FeatureMap | None = None,
        C: Any = 1.0,
        *,
        noise: str = "logistic",
        sigma: float = 1.0,
        Cs: Any = None,
        cv: int = 5,
        fold_by: str = "hash",
        multi_class: str = "ovr",
        class_weight: Any = None,
        fit_intercept: bool = True,
        scale: str = "none",
        dtype: str = "auto",
        solver: str = "auto",
        tol: float = 1e-3,
        max_sweeps: int | None = None,
        random_state: int | None = None,
    ) -> None:
        self.features = features
        self.C = C
        self.noise = noise
        self.sigma = sigma
        self.Cs = Cs
        self.cv = cv
        self.fold_by = fold_by
        self.multi_class = multi_class
        self.class_weight = class_weight
        self.fit_intercept = fit_intercept
        self.scale = scale
        self.dtype = dtype
        self.solver = solver
        self.tol = tol
        self.max_sweeps = max_sweeps
        self.random_state = random_state

    def predict_proba(self, X: Any) -> Any:
        """Return the probability of each class, of shape (n_samples, n_classes), lazily for dask arrays.

        Ψ(f/σ) for two classes; for more, those of one against the rest divided by their sum, or softmax.
        """
        return self._output(X, "predict_proba")

    def _options(self) -> MarginOptions:
        one_of("noise", self.noise, tuple(NOISES))
        one_of("multi_class", self.multi_class, ("ovr", "softmax"))
        if self.multi_class == "softmax" and self.noise != "logistic":
            raise InputError(
                f"multi_class='softmax' is for noise='logistic', got noise={self.noise!r}; use 'ovr'"
            )
        positive_number("sigma", self.sigma)
        return margin_options(self, NOISES[self.noise](float(self.sigma)), f"noise={self.noise!r}")

    @property
    def _likelihood(self) -> dict[str, Any]:  # type: ignore[override]
        return {"noise": self.noise, "sigma": float(self.sigma), "multi_class": self.multi_class}
