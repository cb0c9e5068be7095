#!/usr/bin/env python3
"""Compares the table of autocast policies in docs/guide/numerics.md with the one that the test program prints. --write puts it
there.

    autocast_doc_test.py DOCUMENT TEST_PROGRAM
"""
from written_table import main

main("autocast_markdown", "policy")
