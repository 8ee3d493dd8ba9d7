"""Files that run in the interpreter of the user's program: standard library only, and no other part of Cadre."""

# The scratch folder of all instances of a process begins with this. The process that removes it checks nothing else.
SCRATCH = "cadre-programs-"
