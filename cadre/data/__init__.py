"""Public data sets as frozen records, from the hub by name or from a local folder of JSONL in the hub's own shape.

A file of your own is read by the names of its fields (`cadre.data.user_file`). Nothing is fetched in silence: the hub
is asked only where the user writes `hub`. Nothing of a data set is committed.
"""

from cadre.data.leaks import Leak, leaks
from cadre.data.read import load
from cadre.data.records import Article, Problem, Program, Record
from cadre.data.specs import SPECS, Spec

__all__ = ["SPECS", "Article", "Leak", "Problem", "Program", "Record", "Spec", "leaks", "load"]
