"""From a traced module and a cluster to a plan: the search over programs and splits, and the plan file."""

from hap.planning.api import plan_axes
from hap.planning.plan import Plan
from hap.planning.text import program_text

__all__ = ["Plan", "plan_axes", "program_text"]
