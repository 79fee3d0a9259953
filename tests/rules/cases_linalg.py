"""Cases of linear algebra on batches of matrices, and of Fourier transforms."""

from __future__ import annotations

from typing import Any

import torch

from hap.graph import Ref
from tests.rules.sketch import Sketch, case, cases

aten = torch.ops.aten
N = 3


def _positive_definite(s: Sketch, batch: int) -> Ref:
    root = torch.randn(batch, N, N, generator=s.generator, dtype=torch.float64)
    return s.constant(root @ root.mT + 2 * torch.eye(N, dtype=torch.float64))


@cases("linalg_inv_ex linalg_cholesky_ex linalg_eig", "S0 -> S0 S0")
@cases("cholesky cholesky_inverse linalg_eigvals linalg_matrix_exp", "S0 -> S0")
@cases("linalg_qr _linalg_eigh geqrf", "S0 -> S0 S0")
@cases("linalg_lu_factor_ex linalg_lu _linalg_svd _linalg_det", "S0 -> S0 S0 S0")
@cases("_linalg_slogdet", "S0 -> S0 S0 S0 S0")
def _(s: Sketch, target: Any) -> None:
    s.call(target, _positive_definite(s, *s.sizes(1)))


@case("aten.linalg_pinv.atol_rtol_tensor", "S0 -> S0")
def _(s: Sketch) -> None:
    s.call(aten.linalg_pinv.atol_rtol_tensor, s.tensor(*s.sizes(1), 3, 4))


@case("aten.linalg_pinv.atol_rtol_tensor", "S0 S0 S0 -> S0")
def _(s: Sketch) -> None:
    (b,) = s.sizes(1)
    s.call(aten.linalg_pinv.atol_rtol_tensor, s.tensor(b, 3, 4), atol=s.positive(b), rtol=s.positive(b))


@case("aten.cholesky_solve.default", "S0 S0 -> S0, S2 R -> S2, P R -> P")
def _(s: Sketch) -> None:
    b, k = s.sizes(2)
    s.call(aten.cholesky_solve.default, s.tensor(b, N, k), _positive_definite(s, b))


@case("aten.triangular_solve.default", "S0 S0 -> S0 S0, S2 R -> S2 R, P R -> P R")
def _(s: Sketch) -> None:
    b, k = s.sizes(2)
    s.call(aten.triangular_solve.default, s.tensor(b, N, k), _positive_definite(s, b))


@case("aten.linalg_solve_triangular.default", "S0 S0 -> S0, R S2 -> S2, R P -> P")
def _(s: Sketch) -> None:
    b, k = s.sizes(2)
    s.call(aten.linalg_solve_triangular.default, _positive_definite(s, b), s.tensor(b, N, k), upper=True)


@case("aten.linalg_solve_triangular.default", "S0 S0 -> S0, R P -> P")
def _(s: Sketch) -> None:
    b, k = s.sizes(2)
    s.call(aten.linalg_solve_triangular.default, _positive_definite(s, b), s.tensor(b, k, N), upper=True, left=False)


@case("aten._linalg_solve_ex.default", "S0 S0 -> S0 S0 S0 S0, R S2 -> S2 R R R, R P -> P R R R")
def _(s: Sketch) -> None:
    b, k = s.sizes(2)
    s.call(aten._linalg_solve_ex.default, _positive_definite(s, b), s.tensor(b, N, k))


@case("aten.linalg_lu_solve.default", "S0 S0 S0 -> S0, R R S2 -> S2, R R P -> P")
def _(s: Sketch) -> None:
    b, k = s.sizes(2)
    factors, pivots, _ = s.call(aten.linalg_lu_factor_ex.default, _positive_definite(s, b))
    s.call(aten.linalg_lu_solve.default, factors, pivots, s.tensor(b, N, k))


@case("aten.lu_unpack.default", "S0 S0 -> S0 S0 S0")
def _(s: Sketch) -> None:
    factors, pivots, _ = s.call(aten.linalg_lu_factor_ex.default, _positive_definite(s, *s.sizes(1)))
    s.call(aten.lu_unpack.default, factors, pivots)


@case("aten.linalg_householder_product.default", "S0 S0 -> S0")
def _(s: Sketch) -> None:
    (b,) = s.sizes(1)
    reflectors, tau = s.call(aten.geqrf.default, _positive_definite(s, b))
    s.call(aten.linalg_householder_product.default, reflectors, tau)


@case("aten.ormqr.default", "S0 S0 S0 -> S0, R R P -> P")
def _(s: Sketch) -> None:
    (b,) = s.sizes(1)
    reflectors, tau = s.call(aten.geqrf.default, _positive_definite(s, b))
    s.call(aten.ormqr.default, reflectors, tau, s.tensor(b, N, 2))


# ---- Fourier transforms


@case("aten._fft_c2c.default", "S0 -> S0, S2 -> S2, P -> P")
def _(s: Sketch) -> None:
    s.call(aten._fft_c2c.default, s.tensor(*s.sizes(3), dtype=torch.complex128), [1], 0, True)


@case("aten._fft_r2c.default", "S0 -> S0, P -> P")
def _(s: Sketch) -> None:
    a, b = s.sizes(2)
    s.call(aten._fft_r2c.default, s.tensor(a, b, 6), [1, 2], 1, True)


@case("aten._fft_c2r.default", "S0 -> S0, P -> P")
def _(s: Sketch) -> None:
    s.call(aten._fft_c2r.default, s.tensor(*s.sizes(1), 4, dtype=torch.complex128), [1], 2, 6)


@case("aten.view_as_real.default", "S0 -> S0, S1 -> S1, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.view_as_real.default, s.tensor(*s.sizes(2), dtype=torch.complex128))


@case("aten.view_as_complex.default", "S0 -> S0, S1 -> S1, P -> P")
def _(s: Sketch) -> None:
    s.call(aten.view_as_complex.default, s.tensor(*s.sizes(2), 2))
