"""Errors that hap raises for what a user can mend. Internal invariants are asserted instead."""


class HapError(ValueError):
    """Base of all errors of hap: the message names what is wrong, what was expected, and what to do."""


class TraceError(HapError):
    """The module cannot be captured; the message holds the user's source line."""


class CheckError(HapError):
    """A module cannot be checked (it does not run in float64, all is NaN), or its graph lacks what it computes."""


class ClusterError(HapError):
    """A cluster, device, link or cluster file is not valid."""


class RuleError(HapError):
    """A rule for an operator does not follow the notation, does not fit its operator, or is wrong."""


class PlanError(HapError):
    """A plan cannot be made, loaded, or used for this module, these inputs or this world."""


class RuntimeMismatchError(HapError):
    """The ranks of a job do not agree: on the plan, the inputs, the code or the world size."""


class CommunicationError(HapError):
    """A collective failed while running; the message names the instruction, the tensor and the ranks."""


class NonFiniteError(HapError):
    """A result is NaN, where it was asked for; the message names the instruction, the tensor, the source, the ranks."""


class CheckpointError(HapError):
    """A checkpoint cannot be written or read, or does not fit what it is loaded into."""


class LoweringError(HapError):
    """A program does not fit its graph: an instruction reads what is not there, or names what does not exist."""
