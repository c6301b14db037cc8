# syntax=docker/dockerfile:1
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
WORKDIR /src
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY requirements.lock requirements-build.lock ./
RUN python -m venv /opt/tokgauge \
    && /opt/tokgauge/bin/pip install --require-hashes -r requirements.lock \
    && pip install --require-hashes -r requirements-build.lock
COPY pyproject.toml README.md LICENSE ./
COPY proxy proxy
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /dist . \
    && /opt/tokgauge/bin/pip install --no-deps /dist/*.whl \
    && /opt/tokgauge/bin/pip uninstall --yes pip

FROM python:${PYTHON}-slim
COPY --from=build /opt/tokgauge /opt/tokgauge
# Nothing is written outside of /tmp: run it with --read-only --tmpfs /tmp.
ENV PATH=/opt/tokgauge/bin:$PATH PYTHONDONTWRITEBYTECODE=1 TOKGAUGE_HOST=0.0.0.0
USER 65532:65532
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f\"http://127.0.0.1:{os.environ.get('TOKGAUGE_PORT', '8080')}/tokgauge/healthz\", timeout=2)"]
ENTRYPOINT ["tokgauge"]
CMD ["serve"]
