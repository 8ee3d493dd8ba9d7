"""The domains of the world `plan` in PDDL (STRIPS with types), and problems in them made from seeds.

Blocks on a table, packages in trucks, rovers that sample soil and radio it home. A problem is plain data, objects by
type and facts; every one has a solution by construction. What is left out: costs of actions, numbers and time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

DomainName = Literal["blocks", "logistics", "rovers"]
Facts = list[list[str]]

BLOCKS = """(define (domain blocks) (:requirements :strips :typing) (:types block)
 (:predicates (on ?x - block ?y - block) (table ?x - block) (clear ?x - block) (hand) (held ?x - block))
 (:action take :parameters (?x - block)
  :precondition (and (clear ?x) (table ?x) (hand)) :effect (and (held ?x) (not (clear ?x)) (not (table ?x))
   (not (hand))))
 (:action drop :parameters (?x - block)
  :precondition (and (held ?x)) :effect (and (clear ?x) (table ?x) (hand) (not (held ?x))))
 (:action stack :parameters (?x - block ?y - block)
  :precondition (and (held ?x) (clear ?y)) :effect (and (on ?x ?y) (clear ?x) (hand) (not (held ?x)) (not (clear ?y))))
 (:action lift :parameters (?x - block ?y - block)
  :precondition (and (on ?x ?y) (clear ?x) (hand)) :effect (and (held ?x) (clear ?y) (not (on ?x ?y))
   (not (clear ?x)) (not (hand))))
)"""
LOGISTICS = """(define (domain logistics) (:requirements :strips :typing) (:types truck package place)
 (:predicates (at ?t - truck ?a - place) (lies ?p - package ?a - place) (in ?p - package ?t - truck)
  (road ?a - place ?b - place))
 (:action drive :parameters (?t - truck ?a - place ?b - place)
  :precondition (and (at ?t ?a) (road ?a ?b)) :effect (and (at ?t ?b) (not (at ?t ?a))))
 (:action load :parameters (?t - truck ?p - package ?a - place)
  :precondition (and (at ?t ?a) (lies ?p ?a)) :effect (and (in ?p ?t) (not (lies ?p ?a))))
 (:action unload :parameters (?t - truck ?p - package ?a - place)
  :precondition (and (at ?t ?a) (in ?p ?t)) :effect (and (lies ?p ?a) (not (in ?p ?t))))
)"""
ROVERS = """(define (domain rovers) (:requirements :strips :typing) (:types rover place)
 (:predicates (at ?r - rover ?a - place) (path ?a - place ?b - place) (soil ?a - place) (free ?r - rover)
  (has ?r - rover ?a - place) (sees ?a - place) (known ?a - place))
 (:action move :parameters (?r - rover ?a - place ?b - place)
  :precondition (and (at ?r ?a) (path ?a ?b)) :effect (and (at ?r ?b) (not (at ?r ?a))))
 (:action sample :parameters (?r - rover ?a - place)
  :precondition (and (at ?r ?a) (soil ?a) (free ?r)) :effect (and (has ?r ?a) (not (soil ?a)) (not (free ?r))))
 (:action radio :parameters (?r - rover ?s - place ?a - place)
  :precondition (and (at ?r ?a) (has ?r ?s) (sees ?a)) :effect (and (known ?s) (free ?r) (not (has ?r ?s))))
)"""
DOMAINS: dict[str, str] = {"blocks": BLOCKS, "logistics": LOGISTICS, "rovers": ROVERS}
# The type whose objects act, one action each at a time, where there is one.
ROBOTS: dict[str, str] = {"logistics": "truck", "rovers": "rover"}


def problem(draw: random.Random, domain: str, size: int, robots: int) -> dict[str, Any]:
    """Return a problem with `size` blocks, packages or samples."""
    return {"domain": domain, **MAKERS[domain](draw, size, robots)}


def _blocks(draw: random.Random, size: int, robots: int) -> dict[str, Any]:
    names = [f"b{number}" for number in range(1, size + 1)]
    init = [*_towers(draw, names), ["hand"]]
    goal = [fact for fact in _towers(draw, names) if fact[0] == "on"]
    return {"objects": {"block": names}, "init": init, "goal": goal}


def _towers(draw: random.Random, names: Sequence[str]) -> Facts:
    """Return facts that put every block on the table or on another."""
    facts: Facts = []
    tops: list[str] = []
    for name in draw.sample(names, len(names)):
        if tops and draw.random() < 0.6:
            support = tops.pop(draw.randrange(len(tops)))
            facts.append(["on", name, support])
        else:
            facts.append(["table", name])
        tops.append(name)
    return sorted(facts + [["clear", name] for name in tops])


def _logistics(draw: random.Random, size: int, robots: int) -> dict[str, Any]:
    trucks, packages = _named("t", robots), _named("p", size)
    cities = _named("c", max(3, size + 1))
    init = _ways(draw, "road", cities) + [["at", truck, draw.choice(cities)] for truck in trucks]
    init += [["lies", package, draw.choice(cities)] for package in packages]
    goal = [["lies", package, draw.choice(cities)] for package in packages]
    return {"objects": {"truck": trucks, "package": packages, "place": cities}, "init": sorted(init), "goal": goal}


def _rovers(draw: random.Random, size: int, robots: int) -> dict[str, Any]:
    rovers, waypoints = _named("r", robots), _named("w", size + 2)
    sites = sorted(draw.sample(waypoints, size))
    init = _ways(draw, "path", waypoints) + [["soil", site] for site in sites] + [["sees", draw.choice(waypoints)]]
    init += [["at", rover, draw.choice(waypoints)] for rover in rovers] + [["free", rover] for rover in rovers]
    return {
        "objects": {"rover": rovers, "place": waypoints},
        "init": sorted(init),
        "goal": [["known", site] for site in sites],
    }


def _named(letter: str, count: int) -> list[str]:
    return [f"{letter}{number}" for number in range(1, count + 1)]


def _ways(draw: random.Random, name: str, nodes: Sequence[str]) -> Facts:
    """Return a tree over the places and sometimes one more way, both directions each."""
    # Each place is joined to an earlier one, so all places are connected and every problem has a solution.
    pairs = {(nodes[draw.randrange(number)], nodes[number]) for number in range(1, len(nodes))}
    pairs |= {tuple(sorted(draw.sample(nodes, 2))) for _ in range(len(nodes) // 3)}  # type: ignore[misc]
    return [[name, *way] for pair in sorted(pairs) for way in (pair, pair[::-1])]


MAKERS: Mapping[str, Callable[[random.Random, int, int], dict[str, Any]]] = {
    "blocks": _blocks,
    "logistics": _logistics,
    "rovers": _rovers,
}


def fact(parts: Sequence[str]) -> str:
    """Return a fact in PDDL: `(on b1 b2)`."""
    return f"({' '.join(parts)})"


def pddl(data: Mapping[str, Any]) -> str:
    """Return the problem in PDDL."""
    objects = " ".join(f"{' '.join(names)} - {kind}" for kind, names in data["objects"].items())
    init, goal = (" ".join(map(fact, data[part])) for part in ("init", "goal"))
    return f"(define (problem p) (:domain {data['domain']}) (:objects {objects}) (:init {init}) (:goal (and {goal})))"
