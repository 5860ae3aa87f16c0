"""Conversations and JSON documents of our own, from seeded templates and word lists."""
