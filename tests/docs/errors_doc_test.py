#!/usr/bin/env python3
"""Compares the table in docs/reference/errors.md with what the code of tests/core/error_catalogue_test.cpp throws. --write puts it
there.

    errors_doc_test.py DOCUMENT TEST_PROGRAM
"""
from written_table import main

main("errors_markdown", "kind")
