"""Values and rules: names, locations, errors, attempts and their results, work orders, formats.

This room knows what things are called and which of them are right. It does no I/O: it opens no file, no socket and no
process, and knows no settings. Every other room may import it.
"""
