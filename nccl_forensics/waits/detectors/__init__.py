"""What can be concluded from a job's dumps. One file for each family; a detector is a pure function of the picture.

    def never_started(picture: Picture) -> Judgement | None: ...

It sees nothing but the picture and gives its judgement, or None where it has nothing to say. `QUESTIONS` has the order
in which the detectors are asked: a new one is a file here and a row there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nccl_forensics.waits.detectors import (
    all_entered,
    always_late,
    deadlocks,
    different_calls,
    not_entered,
    posts,
    running,
    went_on,
    without_dump,
)
from nccl_forensics.waits.judgement import Judgement
from nccl_forensics.waits.picture import Picture

Detector = Callable[[Picture], Judgement | None]


@dataclass(frozen=True, slots=True)
class Question:
    """A detector, and when it is asked."""

    ask: Detector
    besides: bool = False
    """Asked besides the answer that was found, as long as that accuses nobody; its own is added. Others are asked only
    while there is no answer."""


QUESTIONS: tuple[Question, ...] = (
    Question(running.dumps_of_different_moments),
    Question(running.nothing_is_open),
    # From what explains most: a wrong call makes everybody wait, also those that never arrive.
    Question(different_calls.different_calls),
    Question(went_on.went_on),
    Question(posts.passed_over),
    Question(posts.perhaps_unmet),
    Question(without_dump.nobody_here_waits),
    Question(all_entered.never_started),
    # Who stands at the end of the chains of waits.
    Question(posts.never_posted),
    Question(not_entered.one_call_more),
    Question(not_entered.never_entered),
    # All that are waited for wait themselves, or left no dump.
    Question(deadlocks.opposite_order),
    Question(without_dump.perhaps_the_absent),
    Question(deadlocks.circle_of_waits),
    Question(without_dump.last_call_unsure),
    Question(without_dump.everybody_waits),
    # Nobody waits for anybody in particular.
    Question(all_entered.one_behind),
    Question(running.still_completing),
    Question(all_entered.nobody_apart),
    Question(always_late.always_late, besides=True),
)
"""In the order in which they are asked: the first that answers ends the questioning, but for those `besides`."""


def judge(picture: Picture) -> Judgement:
    """The answer to who holds the others up."""
    answer: Judgement | None = None
    for question in QUESTIONS:
        if answer is None:
            answer = question.ask(picture)
        elif question.besides and not answer.suspects:
            answer = answer.and_also(question.ask(picture) or Judgement())
    return answer or Judgement()
