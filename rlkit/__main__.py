"""`python -m rlkit ...` is `rlkit ...`; torchrun starts it this way."""

from rlkit.cli import main

raise SystemExit(main())
