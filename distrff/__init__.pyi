"""The public names for type checkers: what `__init__` loads when it is first used."""

from distrff import metrics as metrics
from distrff.diagnostics import bounds as bounds
from distrff.diagnostics.bounds import features_needed as features_needed
from distrff.diagnostics.dependence import partial_dependence as partial_dependence
from distrff.diagnostics.evaluate import calibrate as calibrate
from distrff.diagnostics.evaluate import evaluate as evaluate
from distrff.diagnostics.importance import permutation_importance as permutation_importance
from distrff.diagnostics.kernel_error import kernel_error as kernel_error
from distrff.diagnostics.plots import plot_alpha_path as plot_alpha_path
from distrff.diagnostics.plots import plot_confusion as plot_confusion
from distrff.diagnostics.plots import plot_decision_surface as plot_decision_surface
from distrff.diagnostics.plots import plot_importance as plot_importance
from distrff.diagnostics.plots import plot_kernel_error as plot_kernel_error
from distrff.diagnostics.plots import plot_learning_curve as plot_learning_curve
from distrff.diagnostics.plots import plot_partial_dependence as plot_partial_dependence
from distrff.diagnostics.plots import plot_precision_recall as plot_precision_recall
from distrff.diagnostics.plots import plot_predicted_against_actual as plot_predicted_against_actual
from distrff.diagnostics.plots import plot_relevance as plot_relevance
from distrff.diagnostics.plots import plot_reliability as plot_reliability
from distrff.diagnostics.plots import plot_residuals as plot_residuals
from distrff.diagnostics.plots import plot_roc as plot_roc
from distrff.diagnostics.quality import Evaluation as Evaluation
from distrff.engine.cluster import connect as connect
from distrff.engine.progress import SweepProgress as SweepProgress
from distrff.estimators.base import EXPECTED_FAILED_CHECKS as EXPECTED_FAILED_CHECKS
from distrff.estimators.base import cross_val_predict as cross_val_predict
from distrff.estimators.callbacks import EarlyStopping as EarlyStopping
from distrff.estimators.gram import fit_features as fit_features
from distrff.estimators.gram import gradient_outer_product as gradient_outer_product
from distrff.estimators.gram import gram as gram
from distrff.estimators.pca import KernelPCA as KernelPCA
from distrff.estimators.ridge import KernelRidge as KernelRidge
from distrff.estimators.ridge import KernelRidgeClassifier as KernelRidgeClassifier
from distrff.estimators.svm import KernelLikelihoodClassifier as KernelLikelihoodClassifier
from distrff.estimators.svm import KernelSVC as KernelSVC
from distrff.features.binning import RandomBinningFeatures as RandomBinningFeatures
from distrff.features.compose import ConcatenatedFeatures as ConcatenatedFeatures
from distrff.features.compose import LinearFeatures as LinearFeatures
from distrff.features.equispaced import EquispacedFourierFeatures as EquispacedFourierFeatures
from distrff.features.fourier import FourierFeatures as FourierFeatures
from distrff.features.nystroem import NystroemFeatures as NystroemFeatures
from distrff.features.search.candidates import AutoFeatures as AutoFeatures
from distrff.features.transformer import TransformerFeatures as TransformerFeatures
from distrff.fitting.equispaced import ToeplitzStatistics as ToeplitzStatistics
from distrff.fitting.sums import GramStatistics as GramStatistics
from distrff.io.convert.convert import convert as convert
from distrff.io.open import open_dataset as open_dataset
from distrff.kernels.base import Polynomial as Polynomial
from distrff.kernels.stationary import Cauchy as Cauchy
from distrff.kernels.stationary import Exponential as Exponential
from distrff.kernels.stationary import Gaussian as Gaussian
from distrff.kernels.stationary import Laplacian as Laplacian
from distrff.kernels.stationary import Matern as Matern
from distrff.model.persistence import load_model as load_model
from distrff.model.raster import predict_raster as predict_raster
from distrff.model.write import write_predictions as write_predictions
from distrff.preprocessing.folds import ContiguousFolds as ContiguousFolds
from distrff.preprocessing.folds import HashFolds as HashFolds
from distrff.preprocessing.splits import BlockFolds as BlockFolds
from distrff.preprocessing.splits import ForwardFolds as ForwardFolds
from distrff.preprocessing.splits import GroupFolds as GroupFolds

__version__: str

_MODULES: dict[str, str]  # the module of each public name
