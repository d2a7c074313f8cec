"""Dialects: JSON to requests, events to bytes.  Pure; one file each."""
