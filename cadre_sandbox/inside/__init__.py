"""What runs on the far side of the wall: the warm parent, and the child that arms its layers and runs a program.

The warm parent is a new interpreter that never imports `cadre`; it finds this package as the top-level name `inside`.
So these modules import only the standard library and each other, by relative names.
"""
