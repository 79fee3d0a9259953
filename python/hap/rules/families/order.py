"""Order statistics, scans and counts."""

from __future__ import annotations

from functools import partial

from hap.rules.call import Call, Rule, Table
from hap.rules.families.reduction import along, along_dim, reduction, whole


def _summed(call: Call) -> str:
    """Counts and sums of part of the elements add up; yet they are not linear."""
    return reduction(call, "", block=False)


def _histogram(call: Call) -> str:
    """Counts between given bounds add up; else the bounds are those of all values."""
    return "*d -> b!" if call["min"] < call["max"] else "*d! -> b!"


def _length_pattern(call: Call) -> str | None:
    """Of the tensor that says where segments end: their lengths, or one offset more than there are segments."""
    if call.has("indices") or call.has("lengths") == call.has("offsets"):
        return None
    return "*a s!" if call.has("lengths") else "*a o!"


def _segments(call: Call) -> str | None:
    """Sums and means of segments are linear, but that sums start from a number."""
    lengths = _length_pattern(call)
    mark = "~" if call["reduce"] in ("sum", "mean") and not call["initial"] else ""
    return lengths and f"{mark}*a d! *b, {lengths} -> *a s! *b"


def _segments_backward(call: Call) -> str | None:
    lengths = _length_pattern(call)
    return lengths and f"~*a s! *b, *a s! *b, *a d! *b, {lengths} -> *a d! *b"


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
    "aten.isin.Tensor_Scalar": Rule("*d -> *d"),
    "aten.histc.default": Rule(_histogram),
    "aten.segment_reduce.default": Rule(_segments, runs=partial(along_dim, name="axis")),
    "aten._segment_reduce_backward.default": Rule(_segments_backward, runs=partial(along_dim, name="axis")),
    "aten.dist.default": Rule("*d!, *d! -> ."),
}
