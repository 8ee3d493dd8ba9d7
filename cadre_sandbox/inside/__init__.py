"""The confined side of the sandbox: the warm parent, and the children that arm their layers and run programs.

The warm parent is a new interpreter that never imports `cadre`; it imports this package as the top-level name `inside`.
So these modules import only the standard library and each other, by relative names.
"""
