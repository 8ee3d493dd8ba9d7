"""Data sets as frozen records: public ones from the hub or a local folder, and files of the user's own.

records      the classes of records
rows         rows of JSON lines, JSON and Parquet files
public_sets  the table of public sets, and how a row becomes a record
hub          downloads, only where the user writes `hub`
read         a split of a public set
user_file    a file of the user's own, by the names of its fields
leaks        training items that are test items, contradictions and repetitions
tasks        the tasks of an environment
examine      `cadre data`
preferences  preference pairs and prompts in files

Nothing of a data set is committed to this repository.
"""

from cadre_tasks.data.leaks import Leak, find_leaks
from cadre_tasks.data.public_sets import SPECS, DatasetSpec
from cadre_tasks.data.read import load
from cadre_tasks.data.records import Article, CodingProblem, Problem, Record

__all__ = ["SPECS", "Article", "CodingProblem", "DatasetSpec", "Leak", "Problem", "Record", "find_leaks", "load"]
