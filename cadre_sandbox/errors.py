"""The exceptions of the sandbox, both without a cause in the program that was to be run."""


class SandboxError(Exception):
    """This machine cannot confine programs as strictly as asked."""


class SandboxUnavailable(SandboxError):
    """A program could not be run, on several new warm parents in turn. This is no verdict on the program."""
