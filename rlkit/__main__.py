"""`python -m rlkit ...` is `rlkit ...`; torchrun starts it this way."""

from rlkit.cli import main
from rlkit.failure import leave_at_once

leave_at_once(main())
