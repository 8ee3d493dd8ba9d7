"""Team patterns, each a small environment: over a question of mathematics here, over yours in a subclass.

`Question` defines the question and the check of an answer; override `question`, `right` and `tasks` for another task.
"""

from cadre_tasks.patterns.debate import Debate
from cadre_tasks.patterns.gather import Gather
from cadre_tasks.patterns.lead import Lead
from cadre_tasks.patterns.question import Question
from cadre_tasks.patterns.refine import Refine
from cadre_tasks.patterns.review import Review

__all__ = ["Debate", "Gather", "Lead", "Question", "Refine", "Review"]
