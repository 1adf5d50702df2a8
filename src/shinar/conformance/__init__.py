"""The conformance adapter: the public contract suite asks, our library answers.

`python -m shinar.conformance` reads questions from stdin and writes answers to stdout, one JSON
object a line. It has no rules of its own; each call is a translation and nothing else.
"""
