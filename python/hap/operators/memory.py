"""Whose memory an operator's results are in, or may be put in: what its name and schema say.

Only ATen's schemas are believed: a result that they do not mark as a view is memory of its own.
"""

from __future__ import annotations

from functools import cache

import torch

aten = torch.ops.aten

_FRESH = frozenset({"dropout"})
"""Operators of hap's own whose result is memory of its own."""
_WHOLE = frozenset({"view", "reshape", "permute", "transpose", "t", "unsqueeze", "squeeze", "detach", "alias"})
"""Views that show each element of what they view once."""
_UNMARKED = frozenset({"_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "lift"})
"""Operators whose schema hides that their result is a view."""

CHANGING = {
    aten.scatter.value: aten.scatter_.value,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.index_put.default: aten.index_put_.default,
}
"""Operators that change some elements of their first operand, and the same in place."""


@cache
def writing(operator: torch._ops.OpOverload) -> tuple[torch._ops.OpOverload, str] | None:
    """The overload of an elementwise operator that takes where to write the result, and the name of that argument."""
    if torch.Tag.pointwise not in operator.tags or len(operator._schema.returns) != 1:
        return None
    if any(one.name == "memory_format" for one in operator._schema.arguments):
        return None  # asks for an order of its own
    own = [(one.name, str(one.type)) for one in operator._schema.arguments]
    packet = operator.overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        given = [one for one in other._schema.arguments if not one.is_out]
        out = [one.name for one in other._schema.arguments if one.is_out]
        if len(out) == 1 and [(one.name, str(one.type)) for one in given] == own:
            return other, out[0]
    return None


@cache
def is_opaque(operator: torch._ops.OpOverload) -> bool:
    """Whether an operator may return or keep what it is given, without saying so."""
    schema = operator._schema
    if operator.namespace != "aten":
        return not (operator.namespace == "hap" and schema.name.removeprefix("hap::") in _FRESH)
    if any(result.alias_info is not None for result in schema.returns):
        return False
    # What is made of other operators may return its operand all the same.
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    return schema.name.removeprefix("aten::") in _UNMARKED or operator.has_kernel_for_dispatch_key(composite)


@cache
def shows_all(operator: torch._ops.OpOverload) -> bool:
    """Whether a view shows each element of what it views once; what was written to shows itself."""
    return operator._schema.is_mutable or operator._schema.name.removeprefix("aten::") in _WHOLE
