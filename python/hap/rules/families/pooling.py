"""Pooling over windows of positions."""

from __future__ import annotations

from hap.rules.call import Rule, Table

RULES: Table = {
    "aten.max_pool2d_with_indices.default": Rule("*n h! w! -> *n p! q!, *n p! q!"),
    "aten.max_pool2d_with_indices_backward.default": Rule("~*n p! q!, *n h! w!, *n p! q! -> *n h! w!"),
    "aten.avg_pool2d.default": Rule("~*n h! w! -> *n p! q!"),
    "aten.avg_pool2d_backward.default": Rule("~*n p! q!, *n h! w! -> *n h! w!"),
    "aten._adaptive_avg_pool2d.default": Rule("~*n h! w! -> *n p! q!"),
    "aten._adaptive_avg_pool2d_backward.default": Rule("~*n p! q!, *n h! w! -> *n h! w!"),
}
