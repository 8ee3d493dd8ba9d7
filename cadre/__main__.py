"""`python -m cadre` is the command line."""

from cadre.cli import main

if __name__ == "__main__":
    main()
