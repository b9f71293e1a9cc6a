# Every target calls start.py, which needs Python 3.11 or later and nothing else.
# Flags go through ARGS:  make lab ARGS="--no-browser --port 8899"
PYTHON ?= $(shell command -v python3 || command -v python)

lab setup test test-fast notebooks bench lint:
	$(if $(PYTHON),,$(error no python3 and no python found: install Python 3.11 or later))
	@"$(PYTHON)" start.py $@ $(ARGS)

.PHONY: lab setup test test-fast notebooks bench lint
