"""Dead letters: see why they died, choose which, rehearse, send them back once, with a ledger."""

from shinar.redrive.checks import Checks, LakeSeen
from shinar.redrive.choose import Chosen
from shinar.redrive.expression import Expression
from shinar.redrive.job import Redrive
from shinar.redrive.ledger import Job, JobState, Ledger, Line, LineState
from shinar.redrive.letters import Letter, Nature, read
from shinar.redrive.look import letters, side_effect
from shinar.redrive.model import Receipt, Spec
from shinar.redrive.patch import Patch
from shinar.redrive.plan import Plan
from shinar.redrive.summary import Group, Summary, sparkline, summarise

__all__ = [
    "Checks",
    "Chosen",
    "Expression",
    "Group",
    "Job",
    "JobState",
    "LakeSeen",
    "Ledger",
    "Letter",
    "Line",
    "LineState",
    "Nature",
    "Patch",
    "Plan",
    "Receipt",
    "Redrive",
    "Spec",
    "Summary",
    "letters",
    "read",
    "side_effect",
    "sparkline",
    "summarise",
]
