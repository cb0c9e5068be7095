#!/usr/bin/env python3
"""The table in docs/errors.md has what the code of tests/error_catalogue_test.cpp throws. --write puts it there.

    errors_doc_test.py DOCUMENT TEST_PROGRAM
"""
from written_table import main

main("errors_markdown", "kind")
