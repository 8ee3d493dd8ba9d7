"""Samplers, learners and environments as Ray actors, behind the protocols of `cadre.team`.

Every base model has a pool of samplers and a learner; the process that trains keeps the trees, the order of the work
and all decisions. What an actor is asked follows from the work alone, and each can be asked again: so one that dies is
replaced, and the run goes on as if it had not. Ray is imported here and nowhere else.
"""
