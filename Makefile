# Needs git, make and python3. Everything else goes into .venv (the project) and .venv-uv (uv).
PYTHON := .venv/bin/python
ON_ALL_CORES := --numprocesses auto --dist loadscope --no-loadscope-reorder
PROMPT := Tom has 12 apples and buys 7 more. How many apples does Tom have now?

.PHONY: help setup demo test test-all real real-all lint format release mac-report clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/.ready: uv.lock pyproject.toml .ci/bootstrap
	@.ci/bootstrap
	@touch $@

setup: .venv/.ready ## install the locked environment

demo: .venv/.ready ## answer one question with and without DFlash, bundled models
	@.venv/bin/dflash generate --compare "$(PROMPT)"
	@echo "The program is .venv/bin/dflash; '.venv/bin/dflash chat' begins a chat." >&2
	@echo "'.venv-uv/bin/uv tool install .' makes it the command 'dflash' of every folder." >&2
	@echo "If a shell does not find it then: '.venv-uv/bin/uv tool update-shell', and a new terminal." >&2

test: .venv/.ready ## run the tests of every change, in minutes, a file on each core
	@$(PYTHON) -m pytest $(ON_ALL_CORES) -m "not real and not slow"

test-all: .venv/.ready ## run all tests, long sweeps too
	@$(PYTHON) -m pytest $(ON_ALL_CORES) --timeout 1200

real: .venv/.ready ## test with pretrained models of 0.1 and 0.5 billion parameters, fetched once
	@$(PYTHON) -m pytest -m "real and not real_all" tests/behaviour/test_real*.py

real-all: .venv/.ready ## test with one of 1.5 billion, too: a disk of 12 GB, 16 GB of memory
	@$(PYTHON) -m pytest -m real tests/behaviour/test_real*.py

lint: .venv/.ready ## ruff, pyright, and the sizes of the packages
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/pyright
	$(PYTHON) .ci/sizes

format: .venv/.ready ## sort imports and format
	.venv/bin/ruff check --select I --fix .
	.venv/bin/ruff format .

release: .venv/.ready ## build sdist, wheel, man page and completions into dist
	@.ci/release dist

mac-report: .venv/.ready ## measure this Mac into mac-report.json and .md: ten minutes, a long run of ten
	@$(PYTHON) examples/measure/mac_report.py $(REPORT)

clean: ## remove the environments, builds and caches
	rm -rf .venv .venv-uv build dist *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
