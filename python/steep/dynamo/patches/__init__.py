"""Replacements in Dynamo during a capture, one subject a file."""
