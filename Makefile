# make demo   the proxy with a simulated engine and GPU before you; Ctrl-C ends it
# make check  lint, types, import contract and the tests without sockets: under a minute
# make test   every check, with what it needs set up first
# make other-pythons   some tests on the oldest and the newest supported Python that are here

VENV := .venv
PYTHON := $(shell for name in python3.13 python3.12 python3.11 python3; do \
	"$$name" -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo "$$name" && break; done)
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet

.PHONY: demo check test lint other-pythons some-tests services bench

demo: $(VENV)/installed-demo
	$(VENV)/bin/tokgauge demo

check: lint
	$(VENV)/bin/pytest -q -n 2 -m "socketless and not timed"

lint: $(VENV)/installed-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports --no-cache
	$(VENV)/bin/mypy

# Tests wait for sockets and processes nearly half of their time: three at once keep two cores busy.
# Of the timed ones only two, from the longest file on, which is the first and not the largest.
test: lint services
	$(VENV)/bin/pytest -n 3 --dist loadfile -m "not timed"
	$(VENV)/bin/pytest -n 2 --dist loadfile --no-loadscope-reorder -m timed

other-pythons: $(VENV)/bin/python
	@.ci/other-pythons $(VENV)/bin/python

# No sockets, a process for each command, and real clients: what another Python may do differently.
some-tests: $(VENV)/installed-test
	$(VENV)/bin/pytest -q -n 2 -m "socketless and not timed"
	$(VENV)/bin/pytest -q -n 2 --dist loadfile -m "not timed" tests/test_cli.py tests/test_openai_client.py

# What some tests start by themselves. Without root they are left out, with a message.
services:
	@.ci/need nginx=nginx promtool=prometheus amtool=prometheus-alertmanager \
		cc=gcc /usr/include/stdlib.h=libc6-dev chromium=chromium \
		kubectl=kubernetes-client systemd-analyze=systemd

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { \
		echo "Python 3.11 or newer with venv is needed (Debian: apt-get install python3-venv)"; \
		exit 1; }
	$(PYTHON) -m venv --clear $(VENV)

$(VENV)/installed-demo: requirements.lock requirements-build.lock pyproject.toml $(VENV)/bin/python
	$(PIP) --require-hashes -r requirements.lock -r requirements-build.lock
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/installed-test: requirements-dev.lock $(VENV)/installed-demo
	$(PIP) --require-hashes -r requirements-dev.lock
	@touch $@

# The proxy beside others on this machine, about twenty minutes: see bench/README.md.
bench: $(VENV)/installed-test
	bench/run
