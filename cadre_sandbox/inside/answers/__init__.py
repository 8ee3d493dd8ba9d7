"""Reads mathematical answers as people write them, strictly: what cannot be read whole means nothing.

A text becomes tokens (`spelling`, `tokens`), tokens a shape (`parse`: a value, a list, an interval ...), the values in
it sympy expressions (`reader`) with units (`measures`); `compare` says whether two shapes mean the same. All of it is
run in the sandbox. docs/answers.md has the rules and a table of cases.
"""
