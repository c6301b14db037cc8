"""What `tests/real_vllm.sh` runs: the proxy's figures against those of a real vLLM."""
