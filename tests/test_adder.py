"""The built-in base model: what it is, that it loads, how well it adds, that it is made again."""

import hashlib
import json
import random
import re

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import rlkit
from rlkit.tasks import ARITHMETIC, load_task, pretrain
from rlkit.tasks.teacher import CARELESS, FACTS, MUDDLED

FOLDER = rlkit.data_path("adder")
FORM = {"sums": r"[1-9]\d{1,2}", "steps": r"([1-9]\d*(\+[1-9]\d*)+=)+[1-9]\d*"}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(FOLDER)


# ---- files


def test_config(model):
    config = model.config
    assert config.model_type == "qwen3" and type(model).__name__ == "Qwen3ForCausalLM"
    assert config.tie_word_embeddings
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert sum(p.numel() for p in model.parameters()) < 1_500_000


def test_files():
    files = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    assert set(files) == {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert files["model.safetensors"] < 6_000_000
    assert sum(files.values()) - files["model.safetensors"] < 20_000


def test_special_tokens_agree(model, tokenizer):
    ends = (tokenizer.pad_token_id, tokenizer.eos_token_id)
    assert ends[0] != ends[1] and None not in ends
    for config in (model.config, model.generation_config):
        assert (config.pad_token_id, config.eos_token_id) == ends
    assert tokenizer.bos_token_id is None
    assert len(tokenizer) == model.config.vocab_size


# ---- tokenizer


def test_round_trip(tokenizer):
    for name in ARITHMETIC:
        for row in load_task(name).eval:
            ids = tokenizer(row["prompt"]).input_ids
            assert len(ids) == len(row["prompt"])
            assert tokenizer.decode(ids) == row["prompt"]
            assert tokenizer.unk_token_id not in ids


def test_one_token_a_character_whatever_the_text(tokenizer):
    ids = tokenizer("2 7x+\n5").input_ids
    unknown = tokenizer.unk_token_id
    assert [i == unknown for i in ids] == [False, True, False, True, False, True, False]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "27+5"


def test_padding_is_on_the_left(tokenizer):
    batch = tokenizer(["27+58=", "1+9="], padding=True, return_tensors="pt")
    assert batch.attention_mask.tolist() == [[1] * 6, [0, 0, 1, 1, 1, 1]]
    assert batch.input_ids[1, :2].tolist() == [tokenizer.pad_token_id] * 2
    assert tokenizer.batch_decode(batch.input_ids, skip_special_tokens=True) == ["27+58=", "1+9="]


def test_padding_changes_no_answer(model, tokenizer):
    prompts = ["9+4=", "27+5=", "61+58="]
    together = pretrain.complete(model, tokenizer, prompts, max_new_tokens=6, do_sample=False)
    alone = [
        pretrain.complete(model, tokenizer, [prompt], max_new_tokens=6, do_sample=False)
        for prompt in prompts
    ]
    assert tokenizer.batch_decode(together, skip_special_tokens=True) == [
        tokenizer.decode(ids[0], skip_special_tokens=True) for ids in alone
    ]


# ---- how well it adds


@pytest.fixture(scope="module")
def found(model, tokenizer):
    return pretrain.measure(model, tokenizer, "eval", 500)


def test_a_base_that_leaves_room(found):
    pretrain.check_target(found)
    assert found["sums sampled"] > 0.3  # something to reinforce


def test_the_target_is_checked(found):
    with pytest.raises(RuntimeError, match="sums greedy is 0.900"):
        pretrain.check_target(found | {"sums greedy": 0.9})


def test_the_card_says_what_was_measured(found):
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name in ARITHMETIC:
        row = next(line for line in card.splitlines() if line.startswith(f"| `{name}`"))
        greedy, sampled = (float(x) / 100 for x in re.findall(r"([\d.]+)%", row))
        assert abs(greedy - found[f"{name} greedy"]) < 0.01
        assert abs(sampled - found[f"{name} sampled"]) < 0.07  # 500 draws against 2,000


@pytest.mark.parametrize("name", ARITHMETIC)
def test_completions_end_and_have_the_form(model, tokenizer, name):
    task = load_task(name)
    prompts = [row["prompt"] for row in task.eval]
    longest = task.max_completion_length
    ids = pretrain.complete(
        model, tokenizer, prompts, max_new_tokens=longest, do_sample=True, top_k=0, top_p=1.0
    )
    assert (ids == tokenizer.eos_token_id).any(1).float().mean() > 0.99
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert sum(bool(re.fullmatch(FORM[name], text)) for text in texts) > 0.97 * len(texts)


# ---- made again


def test_a_batch_labels_completion_and_eos_alone(tokenizer):
    ids, labels = pretrain.make_batch(["1+9=10", "27+58+4=85+4=89"], tokenizer)
    shown = [tokenizer.decode(row[row != pretrain.IGNORE]) for row in labels]
    assert shown == ["10<eos>", "85+4=89<eos>"]
    assert tokenizer.decode(ids[0]) == "1+9=10<eos>" + "<pad>" * 9
    assert torch.equal(ids[labels != pretrain.IGNORE], labels[labels != pretrain.IGNORE])


def digest(run: pretrain.Pretraining) -> str:
    parts = [p.detach().numpy().tobytes() for p in run.model.parameters()]
    return hashlib.sha256(b"".join(parts)).hexdigest()


@pytest.mark.slow
def test_pretraining_is_deterministic(tmp_path):
    digests = []
    for i in range(2):
        torch.manual_seed(i)  # what ran before must not matter
        random.seed(i)
        run = pretrain.Pretraining()
        before = digest(run)
        for _ in range(3):
            run.update(CARELESS, share=0.5)
        digests.append((before, digest(run)))
    assert digests[0] == digests[1]
    assert digests[0][0] != digests[0][1]


def test_the_folder_is_what_pretraining_writes(tmp_path):
    found = {f"{name} {how}": 0.5 for name in ARITHMETIC for how in ("greedy", "sampled")}
    pretrain.write(pretrain.Pretraining(), found, tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {p.name for p in FOLDER.iterdir()}
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        ours, theirs = (json.loads((folder / name).read_text()) for folder in (tmp_path, FOLDER))
        assert ours | {"transformers_version": ""} == theirs | {"transformers_version": ""}
    assert (tmp_path / "tokenizer.json").read_bytes() == (FOLDER / "tokenizer.json").read_bytes()


def test_the_teacher_muddles_as_many_facts_as_it_says():
    assert len(FACTS) == MUDDLED and set(FACTS.values()) == {-1, 1}


# ---- in TRL


def test_trl_trains_it(tmp_path):
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    task = load_task("sums")
    trainer = trl.GRPOTrainer(
        model=str(FOLDER),
        reward_funcs=task.reward,
        train_dataset=datasets.Dataset.from_list(task.train[:64]),
        args=trl.GRPOConfig(
            output_dir=str(tmp_path),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            max_steps=2,
            per_device_train_batch_size=32,
            num_generations=8,
            max_completion_length=task.max_completion_length,
            learning_rate=1e-4,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
        ),
    )
    before = trainer.model.model.embed_tokens.weight.detach().clone()
    trainer.train()
    logs = [row for row in trainer.state.log_history if "reward" in row]
    assert len(logs) == 2 and all(0 < row["reward"] < 1 for row in logs)
    assert not torch.equal(before, trainer.model.model.embed_tokens.weight)
