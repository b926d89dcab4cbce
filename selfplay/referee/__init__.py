"""The referee: runs programs written by a model, assumes malice, and returns typed verdicts. Standard library only."""

from selfplay.referee.guarantees import Guarantee, Report
from selfplay.referee.jobs import Run
from selfplay.referee.limits import PURE_MODULES, Limits, Settings
from selfplay.referee.referee import Referee, against
from selfplay.referee.values import (
    NotAValueError,
    TooLargeError,
    ValueLimits,
    canonical,
    decode,
    encode,
    equal,
    literal,
    parse_arguments,
    parse_literal,
)
from selfplay.referee.verdicts import MEANING, Status, Verdict
from selfplay.referee.worker import RefereeError

__all__ = [
    "MEANING",
    "PURE_MODULES",
    "Guarantee",
    "Limits",
    "NotAValueError",
    "Referee",
    "RefereeError",
    "Report",
    "Run",
    "Settings",
    "Status",
    "TooLargeError",
    "ValueLimits",
    "Verdict",
    "against",
    "canonical",
    "decode",
    "encode",
    "equal",
    "literal",
    "parse_arguments",
    "parse_literal",
]
