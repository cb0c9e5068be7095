#!/usr/bin/env python3
"""The table of autocast policies in docs/numerics.md is the one that the test program makes from the rows. --write puts it there.

    autocast_doc_test.py DOCUMENT TEST_PROGRAM
"""
from written_table import main

main("autocast_markdown", "policy")
