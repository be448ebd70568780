"""Drafters, one file or folder for each kind.

A new kind has a class and a cache as in `base`, whose drafts are blocks as in `speculation.drafts`,
and the three functions of `load.DrafterKind`. Name it in `files.formats`, `load.KINDS`,
`bench.sources` and the guide's models.md, and in `hub.kinds` if others publish such drafters. Its
first tests are a line in tests/drafters/test_every_drafter.py.
"""
