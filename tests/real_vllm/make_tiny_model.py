"""Makes a tiny random Qwen2 checkpoint: about 0.5 MB, 2 ms a token on a CPU.

Run by vLLM's own Python (torch, tokenizers, transformers): `make_tiny_model.py DIRECTORY`.

The vocabulary holds all 256 bytes and some ASCII words, and nothing else: a Korean syllable is
three tokens, and most sampled tokens are parts of characters, which engines send as empty deltas.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

END_OF_TEXT = "<|endoftext|>"
END_OF_TURN = "<|im_end|>"
SPECIAL = [END_OF_TEXT, "<|im_start|>", END_OF_TURN, "<think>", "</think>"]
"""In this order: their ids are 0 to 4, and real_vllm/traffic.py counts on the third. The last two
are what a reasoning parser looks for."""

TEXT = (
    "a proxy stands between the client and the engine and measures how long each answer took",
    "the first token ends the silent wait, the last one ends the stream, and usage counts both",
    "which share of the memory bandwidth did the card reach while it wrote these words",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}: {{ message['content'] }}"
    "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant: {% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT * 20, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
    )


def main(directory: Path) -> None:
    torch.manual_seed(1)
    tokenizer = make_tokenizer()
    end = tokenizer.convert_tokens_to_ids(END_OF_TURN)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,  # 2 heads of 32: the smallest that vLLM's CPU attention takes
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=128,
        num_hidden_layers=2,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config.eos_token_id = end
    tokenizer.save_pretrained(directory)
    model.save_pretrained(directory)
    print(f"{len(tokenizer)} tokens, {model.num_parameters()} parameters in {directory}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
