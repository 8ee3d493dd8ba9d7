"""The bundled tasks: environments with their rewards, recipes, and the embedded models; and the supervised warm start.

Cadre finds them by entry points (`cadre.plugins`), as it would find the tasks of any other package.
"""
