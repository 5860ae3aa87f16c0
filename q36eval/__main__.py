"""The program: `q36eval`, and `python -m q36eval` where its script is not on the path."""

from q36eval.app.cli import main

if __name__ == "__main__":
    main()
