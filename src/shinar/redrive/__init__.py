"""Dead letters: see why they died, choose which, rehearse, send them back once, with a ledger."""

from shinar.redrive.eligibility import Checks, LakeSeen
from shinar.redrive.job import Redrive
from shinar.redrive.ledger.ledger import Ledger
from shinar.redrive.ledger.lines import Job, JobState, Line, LineState
from shinar.redrive.letters.letter import Letter, Nature
from shinar.redrive.letters.read import read_letters
from shinar.redrive.letters.summary import Group, Summary, summarise
from shinar.redrive.model import Receipt, Spec
from shinar.redrive.plan import Plan
from shinar.redrive.select.expression import Expression
from shinar.redrive.select.selection import Chosen
from shinar.redrive.send.patch import Patch

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
    "read_letters",
    "summarise",
]
