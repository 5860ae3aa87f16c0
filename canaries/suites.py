"""How many draws of every canary family a suite asks for."""

FEW, MANY = 60, 200
"""`FEW` shows a skill that broke; 0 failures of `MANY` bound the failure rate below 1.9 % (Clopper-Pearson, 97.5 %)."""

DRAWS_PER_FAMILY = {"sandbox": FEW, "quick": FEW, "release": MANY, "extended": MANY}


def draws_per_family(suite: str) -> int:
    """Draws of every family in `suite`, named as on the command line (`NAME`, `NAME=DIR` or a file).

    A suite file of a person's own is asked like the quick one.
    """
    return DRAWS_PER_FAMILY.get(suite.partition("=")[0], FEW)
