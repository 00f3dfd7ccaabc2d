"""The stored formats: every blob carries its kind, a format version and a checksum.

A reader in another language needs only docs/formats.md; a change of meaning needs a new version.
"""
