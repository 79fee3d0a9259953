"""Order statistics, scans and counts."""

from __future__ import annotations

from hap.rules.call import Call, Rule, Table
from hap.rules.families.reduction import along, along_dim, reduction, whole


def _summed(call: Call) -> str:
    """Counts and sums of part of the elements add up; yet they are not linear."""
    return reduction(call, "", block=False)


RULES: Table = {
    "aten.nansum.default": Rule(_summed),
    "aten.count_nonzero.default": Rule(_summed),
    "aten.count_nonzero.dim_IntList": Rule(_summed),
    "aten.aminmax.default": Rule(whole),
    "aten.median.default": Rule(whole),
    "aten.median.dim": Rule(whole),
    "aten.nanmedian.default": Rule(whole),
    "aten.nanmedian.dim": Rule(whole),
    "aten.mode.default": Rule(whole),
    "aten.kthvalue.default": Rule(whole),
    "aten.cummax.default": Rule(along("*a d! *b -> *a d! *b, *a d! *b"), runs=along_dim),
    "aten.cummin.default": Rule(along("*a d! *b -> *a d! *b, *a d! *b"), runs=along_dim),
    "aten.logcumsumexp.default": Rule(along("*a d! *b -> *a d! *b composite d=logcumsumexp"), runs=along_dim),
    "aten.renorm.default": Rule("*a! d *b! -> *a! d *b!", runs=along_dim),
    "aten.linalg_cross.default": Rule("~*a d! *b, ~*a d! *b -> *a d! *b", runs=along_dim),
    "aten.isin.Tensor_Tensor": Rule("*d, *t! -> *d"),
    "aten.dist.default": Rule("*d!, *d! -> ."),
}
