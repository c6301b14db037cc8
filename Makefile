# make demo   the proxy with a simulated engine and GPU before you; Ctrl-C ends it
# make check  lint, types, import contract and the tests without sockets: under a minute
# make test   every check, with what it needs set up first

PYTHON := $(shell for name in python3.13 python3.12 python3.11 python3; do \
	"$$name" -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo "$$name" && break; done)
PIP := .venv/bin/python -m pip --disable-pip-version-check install --quiet

.PHONY: demo check test lint services bench

demo: .venv/installed-demo
	.venv/bin/tokgauge demo

check: lint
	.venv/bin/pytest -q -n 2 -m "socketless and not timed"

lint: .venv/installed-test
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports --no-cache
	.venv/bin/mypy

test: lint services
	.venv/bin/pytest -n 2 --dist loadfile -m "not timed"
	.venv/bin/pytest -n 2 --dist loadfile -m timed

# What some tests start by themselves. Without root they are left out, with a message.
services:
	@.ci/need nginx=nginx promtool=prometheus amtool=prometheus-alertmanager \
		cc=gcc /usr/include/stdlib.h=libc6-dev chromium=chromium \
		kubectl=kubernetes-client systemd-analyze=systemd

.venv/bin/python:
	@test -n "$(PYTHON)" || { \
		echo "Python 3.11 or newer with venv is needed (Debian: apt-get install python3-venv)"; \
		exit 1; }
	$(PYTHON) -m venv --clear .venv

.venv/installed-demo: requirements.lock requirements-build.lock pyproject.toml .venv/bin/python
	$(PIP) --require-hashes -r requirements.lock -r requirements-build.lock
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

.venv/installed-test: requirements-dev.lock .venv/installed-demo
	$(PIP) --require-hashes -r requirements-dev.lock
	@touch $@

# The proxy beside others on this machine, about twenty minutes: see bench/README.md.
bench: .venv/installed-test
	bench/run
