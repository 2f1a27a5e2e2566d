"""Bytes to records: ELF, fatbin, cubin, ar, PE, descriptor, device pack."""
