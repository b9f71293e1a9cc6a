"""Small random models of several architectures, and a character tokenizer, for the tests."""

import torch

CHARACTERS = "0123456789+= "
PAD, EOS = "<pad>", "<eos>"


def tokenizer(pad: str | None = PAD):
    """One token a character; padding and EOS are two different tokens unless told."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {c: i for i, c in enumerate([PAD, EOS, *CHARACTERS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=EOS, pad_token=pad, padding_side="left"
    )


def model(kind: str = "qwen3", seed: int = 0, **changes):
    """A two-layer model of 15 tokens, hidden size 32; random, so its distributions are not flat."""
    import transformers as hf

    sizes = dict(
        vocab_size=len(CHARACTERS) + 2,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    grouped = dict(num_key_value_heads=1, head_dim=16)
    kinds = {
        "qwen3": (hf.Qwen3Config, hf.Qwen3ForCausalLM, grouped | {"tie_word_embeddings": True}),
        "llama": (hf.LlamaConfig, hf.LlamaForCausalLM, grouped),
        "neox": (hf.GPTNeoXConfig, hf.GPTNeoXForCausalLM, {}),
        "gemma3": (
            hf.Gemma3TextConfig,
            hf.Gemma3ForCausalLM,
            grouped | {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
        ),
    }
    config_class, model_class, more = kinds[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = model_class(config_class(**(sizes | more | changes)))
        for parameter in made.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.3)
    return made.eval()


def scorer(kind: str = "qwen3", labels: int = 1):
    """A random reward model (labels: 1) on the trunk of `model`; its scores lie far apart."""
    import copy

    from transformers import AutoModelForSequenceClassification

    lm = model(kind)
    config = copy.deepcopy(lm.config)
    config.num_labels = labels
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        made = AutoModelForSequenceClassification.from_config(config)
        made.base_model.load_state_dict(lm.base_model.state_dict())
        torch.nn.init.normal_(made.score.weight, std=1.0)
    return made.eval()
