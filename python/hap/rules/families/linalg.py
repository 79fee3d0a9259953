"""Linear algebra on batches of matrices: the batch is free, each matrix stays whole.

A rule is written as the number of dimensions that each operand and result has behind the batch, ``2, ~2 -> 2``, with
the marks and reads of :mod:`hap.rules.notation`. ``1k`` is a matrix whose columns stand each for itself (right-hand
sides).
"""

from __future__ import annotations

import re
from functools import partial
from itertools import count

from hap.rules.call import Call, Rule, Table


def _batched(dims: str, call: Call) -> str | None:
    """The line of a call; ``None`` where the batches of its operands differ and are broadcast."""
    if not call.arguments.get("left", True):
        dims = dims.replace("1k", "2")  # the sides stand in rows
    operands, results = (side.split(",") for side in dims.split("->"))
    given = [text for text, name in zip(operands, call.signature.tensors, strict=True) if call.has(name)]
    batches = set()
    for text, tensor in zip(given, call.operands, strict=True):
        rank = len(tensor.shape) - (2 if "1k" in text else int(text.strip(" ~")))
        if rank < 0:
            return None
        batches.add(tensor.shape[:rank])
    if len(batches) != 1:
        return None
    batch = "".join(f"b{i} " for i in range(len(batches.pop())))
    letters = count()

    def written(text: str) -> str:
        def matrix(number: re.Match[str]) -> str:
            dims = batch + "".join(f"m{next(letters)}! " for _ in range(int(number.group(1)))) + (number.group(2) or "")
            return dims or "."

        # what stands in braces are numbers of operands
        return re.sub(r"(?<!{)\b(\d)(k?)(?![\d }]*})", matrix, text).strip() or "."

    return f"{', '.join(map(written, given))} -> {', '.join(map(written, results))}"


_LINES = {
    "linalg_inv_ex.default": "2 -> 2, 0",
    "linalg_cholesky_ex.default": "2 -> 2, 0",
    "cholesky.default": "2 -> 2",
    "cholesky_inverse.default": "2 -> 2",
    "cholesky_solve.default": "~1k, 2 -> 1k",
    "linalg_solve_triangular.default": "2, ~1k -> 1k",
    "_linalg_solve_ex.default": "2, ~1k -> 1k, 2{0}, 1{0}, 0{0}",
    "triangular_solve.default": "~1k, 2 -> 1k, 2{1}",
    "linalg_lu_factor_ex.default": "2 -> 2, 1, 0",
    "linalg_lu.default": "2 -> 2, 2, 2",
    "linalg_lu_solve.default": "2, 1, ~1k -> 1k",
    "lu_unpack.default": "2, 1 -> 2, 2, 2",
    "linalg_pinv.atol_rtol_tensor": "2, 0, 0 -> 2",
    "linalg_qr.default": "2 -> 2, 2",
    "linalg_householder_product.default": "2, 1 -> 2",
    "geqrf.default": "2 -> 2, 1",
    "ormqr.default": "2, 1, ~2 -> 2",
    "_linalg_svd.default": "2 -> 2, 1, 2",
    "_linalg_eigh.default": "2 -> 1, 2",
    "linalg_eig.default": "2 -> 1, 2",
    "linalg_eigvals.default": "2 -> 1",
    "_linalg_det.default": "2 -> 0, 2, 1",
    "_linalg_slogdet.default": "2 -> 0, 0, 2, 1",
    "linalg_matrix_exp.default": "2 -> 2",
}

RULES: Table = {f"aten.{name}": Rule(partial(_batched, dims)) for name, dims in _LINES.items()}
