"""The table of instructions, one module a family.

Each holds its forms, how a form becomes NumPy code, and the functions which that code calls at run time.
"""
