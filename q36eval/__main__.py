"""The program: `q36eval`, and `python -m q36eval` where its script is not on the path."""

from q36eval import startup_lines


def main() -> None:
    """Run the command line; lines say so from the first moment, also while it is imported."""
    startup_lines.begin()
    try:
        from q36eval.app.cli import main as command_line

        command_line()
    finally:
        startup_lines.over()


if __name__ == "__main__":
    main()
