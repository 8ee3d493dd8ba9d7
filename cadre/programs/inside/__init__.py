"""What runs in the interpreter of somebody else's program: the standard library alone, and no other part of Cadre."""

# How the folder begins that all instances of a process have theirs in.
SCRATCH = "cadre-programs-"
