"""The loss of a denoiser that learns its variance, as DiT's copy of OpenAI's diffusion code makes it.

Source: facebookresearch/DiT ed81ce2 (``diffusion/``), whose ``_extract_into_tensor`` adds zeros of the whole shape.
Shapes: B samples, C channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memlint.meta import functional as F
from memlint.meta.tensor import Shape, Tensor, bool_, empty, float32, int64


def coefficient(shape: Shape) -> Tensor:
    """A number of the schedule for each sample, spread over all of it."""
    return empty((shape[0], *(1 for _ in shape[1:])), float32) + empty(shape, float32)


def blend(one: Tensor, other: Tensor) -> Tensor:
    """``q_sample``, and the mean of ``q_posterior_mean_variance``."""
    return coefficient(one.shape) * one + coefficient(one.shape) * other


def losses(model: Callable[[Tensor, Tensor], Tensor], start: Tensor, step: Tensor) -> dict[str, Tensor]:
    """``training_losses`` of a model that gives the noise and its variance: a number for each sample, and what it is
    the sum of. ``start``: (B, C, ...); ``step``: (B,)."""
    noise = empty(start.shape, start.dtype)
    noisy = blend(start, noise)
    step_of_base = F.index(empty((1000,), int64), step)
    given = model(noisy, step_of_base)
    del step_of_base
    given, variance = F.chunk(given, 2, 1)
    frozen = F.cat([given.detach(), variance], 1)
    terms = {"vb": lower_bound(frozen, start, noisy)}
    terms["mse"] = flat_mean(F.pow(noise - given, 2.0))
    terms["loss"] = terms["mse"] + terms["vb"]
    return terms


def lower_bound(given: Tensor, start: Tensor, noisy: Tensor) -> Tensor:
    """``_vb_terms_bpd``"""
    mean, _, logarithm = posterior(start, noisy)
    their_mean, their_logarithm = predicted(given, noisy)
    divergence = F.div(flat_mean(normal_divergence(mean, logarithm, their_mean, their_logarithm)), 2.0)
    likelihood = F.neg(discretized_likelihood(start, their_mean, their_logarithm * 0.5))
    likelihood = F.div(flat_mean(likelihood), 2.0)
    return F.where(empty((start.shape[0],), bool_), likelihood, divergence)


def posterior(start: Tensor, noisy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``q_posterior_mean_variance``"""
    return blend(start, noisy), coefficient(noisy.shape), coefficient(noisy.shape)


def predicted(given: Tensor, noisy: Tensor) -> tuple[Tensor, Tensor]:
    """``p_mean_variance``: the mean, and the variance's logarithm."""
    shape = noisy.shape
    given, values = F.chunk(given, 2, 1)
    least, most = coefficient(shape), coefficient(shape)
    share = F.div(values + 1.0, 2.0)
    logarithm = share * most + F.rsub(share, 1.0) * least
    variance = F.exp(logarithm)
    start = coefficient(shape) * noisy - coefficient(shape) * given
    mean, *others = posterior(start, noisy)
    del variance, others
    return mean, logarithm


def flat_mean(x: Tensor) -> Tensor:
    return F.mean(x, tuple(range(1, x.ndim)))


def normal_divergence(mean: Tensor, logarithm: Tensor, other: Tensor, others: Tensor) -> Tensor:
    """``normal_kl``"""
    exact = F.exp(logarithm - others)
    return (others + -1.0 - logarithm + exact + F.pow(mean - other, 2.0) * F.exp(F.neg(others))) * 0.5


def _distribution(x: Tensor) -> Tensor:
    """``approx_standard_normal_cdf``"""
    return (F.tanh((x + F.pow(x, 3.0) * 2.0) * 2.0) + 1.0) * 0.5


def discretized_likelihood(x: Tensor, means: Tensor, logarithms: Tensor) -> Tensor:
    """``discretized_gaussian_log_likelihood``"""
    centered = x - means
    inverse = F.exp(F.neg(logarithms))
    upper = inverse * (centered + 1.0)
    below_upper = _distribution(upper)
    lower = inverse * (centered + -1.0)
    below_lower = _distribution(lower)
    last = F.log(F.clamp(below_upper))
    first = F.log(F.clamp(F.rsub(below_lower, 1.0)))
    between = below_upper - below_lower
    sides: list[Any] = [empty(x.shape, bool_), empty(x.shape, bool_)]
    return F.where(sides[0], last, F.where(sides[1], first, F.log(F.clamp(between))))
