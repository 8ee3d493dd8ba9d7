"""A server that Tinker's own client (PyPI `tinker`) trains against: one base model, an adapter for each training run.

wire     the messages that are protocol buffers
losses   the loss functions
model    what is computed: forward and backward passes, optimiser steps, samples, files
server   sessions, requests in their order, HTTP; `cadre serve --tinker MODEL`
"""
