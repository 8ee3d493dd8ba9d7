"""Worlds with a real component each: a database, a law of nature, a planner's domain, a library, a circuit.

`relay` is the form that several share; docs/worlds.md describes each of them.
"""
