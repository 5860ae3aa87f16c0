"""Conversations of our own, from seeded templates."""
