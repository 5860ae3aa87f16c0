"""A gate's run, from what a person asks for to the verdict."""
