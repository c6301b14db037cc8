"""Situations of a hidden engine, and whether the verdict names what is wrong with it.

`python -m tests.situations` plays all of them and counts what is mistaken for what.
"""
