"""`python -m q36eval`: the program by another name, where its script is not on the path."""

from q36eval.app.cli import main

main()
