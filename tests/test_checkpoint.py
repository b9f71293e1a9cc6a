"""Checkpoints: whole, of this run, and read by any number of ranks.

What several ranks find comes from one launch of two (tests/ranks.py).
"""

import json
import random
import resource
import shutil

import pytest
import ranks
import torch
from safetensors.torch import load_file, save_file

from rlkit import checkpoint, randomness

FSDP = ["grpo:beta", "ppo", "rloo:lora"]
WAYS = [*FSDP, "grpo:ddp"]


@pytest.fixture
def alone(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")


def run(algorithm, folder, *words, resume=None, **settings):
    trainer = ranks.resumable(algorithm, folder, *words, **settings)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def distance(a, b):
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


# --- several ranks


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """A folder with what two ranks found, and with a run of one process for each way."""
    out = tmp_path_factory.mktemp("checkpoints")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLD_SIZE", "1")
        for way in WAYS:
            algorithm, *words = way.split(":")
            trainer = run(algorithm, out / "one" / way.replace(":", "-"), *words)
            torch.save(ranks.weights(trainer), out / f"one-{way}.pt")
    cases = [f"checkpoint:{out}/two/{way.replace(':', '-')}:{way}" for way in WAYS]
    cases += [f"take_up:{out}/one/{way.replace(':', '-')}:{way}" for way in WAYS]
    cases += [f"take_up:{out}/two/grpo-ddp/straight:grpo"]
    cases += [f"take_up:{out}/two/grpo-beta/straight:grpo:beta:ddp"]
    cases += [f"no_room:{out}/full", f"no_room:{out}/full-ddp:ddp", f"apart:{out}/apart"]
    cases += [f"checkpoint:{out}/two/spare:grpo", f"foreign:{out}/two/spare/straight"]
    ranks.finish(ranks.start(2, cases, out), timeout=300)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_two_ranks_resume_with_the_same_bits(out, way):
    folder = f"{out}/two/{way.replace(':', '-')}"
    (one, other) = ranks.found(out, f"checkpoint:{folder}:{way}", 2)
    (straight, history), (resumed, again) = one
    assert distance(straight, resumed) == 0 and history == again and len(history) == 4
    assert distance(straight, other[1][0]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_two_ranks_go_on_from_one(out, way):
    one = torch.load(out / f"one-{way}.pt")
    name = f"take_up:{out}/one/{way.replace(':', '-')}:{way}"
    for two in ranks.found(out, name, 2):
        assert distance(one, two) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_one_process_goes_on_from_two_ranks(out, way, tmp_path, alone):
    algorithm, *words = way.split(":")
    saved = out / "two" / way.replace(":", "-") / "straight" / "checkpoint-2"
    trainer = run(algorithm, tmp_path, *words, resume=saved)
    one = torch.load(out / f"one-{way}.pt")
    assert len(trainer.history) == 4 and distance(one, ranks.weights(trainer)) < 1e-5


@pytest.mark.slow
def test_sharded_runs_go_on_from_replicated_ones_and_back(out):
    for source, way in (("grpo-ddp", "grpo"), ("grpo-beta", "grpo:beta:ddp")):
        name = "grpo:ddp" if source == "grpo-ddp" else "grpo:beta"
        straight = ranks.found(out, f"checkpoint:{out}/two/{source}:{name}", 2)[0][0][0]
        for found in ranks.found(out, f"take_up:{out}/two/{source}/straight:{way}", 2):
            assert distance(straight, found) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("way", FSDP)
def test_each_rank_writes_its_part_and_nothing_is_pickled(out, way):
    folder = out / "two" / way.replace(":", "-") / "straight" / "checkpoint-4"
    names = {p.name for p in folder.iterdir()}
    shards = {f"shard-0000{r}-model-00001-of-00001.safetensors" for r in (1, 2)}
    assert names == shards | {"state.json"}
    sizes = [sum(t.numel() for t in load_file(folder / name).values()) for name in sorted(shards)]
    assert max(sizes) < 0.52 * sum(sizes)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["", "-ddp:ddp"])
def test_a_rank_without_room_stops_all_and_leaves_nothing(out, kind):
    one, two = ranks.found(out, f"no_room:{out}/full{kind}", 2)
    assert one == two and "full" in one and "could not be written" in one
    assert "File too large" in one and "\n" not in one
    assert {p.name for p in (out / f"full{kind[:4]}").iterdir()} == {"log.csv"}


@pytest.mark.slow
def test_machines_that_do_not_share_a_folder_are_told(out):
    for said in ranks.found(out, f"apart:{out}/apart", 2):
        assert "all machines must share a folder" in said
    assert not list((out / "apart-0").glob("*checkpoint*"))


@pytest.mark.slow
def test_ranks_refuse_what_does_not_fit_together(out):
    one, two = ranks.found(out, f"foreign:{out}/two/spare/straight", 2)
    assert one == two
    rate, size, lost = one
    assert "learning_rate=0.003, not 0.001" in rate
    assert "completions a step=16, not 32" in size
    assert "is damaged" in lost and "shard-00002" in lost


# --- one process


def test_adapters_alone_are_kept(tmp_path, alone):
    run("grpo", tmp_path, "lora")
    names = load_file(tmp_path / "checkpoint-4" / "weights.safetensors")
    assert names and all("lora_" in name for name in names)


def test_dropout_and_a_reward_at_random_go_on_where_they_were(tmp_path, alone):
    import numpy
    import peft

    def reward(completions, **kwargs):
        draw = (random.random, numpy.random.random, lambda: float(torch.rand(())))
        return [f() for _ in completions for f in [random.choice(draw)]]

    def begin(folder, seed):
        random.seed(seed), numpy.random.seed(seed), torch.manual_seed(seed)
        config = peft.LoraConfig(r=4, lora_dropout=0.3, target_modules="all-linear")
        return ranks.resumable("grpo", folder, reward=reward, lora=config)

    straight, stopped, resumed = begin(tmp_path / "a", 0), begin(tmp_path / "b", 0), None
    straight.train()
    stopped = begin(tmp_path / "b", 0)
    stopped.callbacks.append(lambda row: stopped.stop() if row["step"] == 2 else None)
    stopped.train()
    resumed = begin(tmp_path / "b", 5)
    resumed.train(resume_from_checkpoint=True)
    assert distance(ranks.weights(straight), ranks.weights(resumed)) == 0
    assert ranks.timeless(straight.history) == ranks.timeless(resumed.history)


def test_random_states_survive_json():
    saved = json.loads(json.dumps(randomness.state()))
    first = torch.rand(3), random.random()
    randomness.restore(saved)
    assert torch.equal(first[0], torch.rand(3)) and first[1] == random.random()


def test_a_run_whose_first_step_overflowed_resumes(tmp_path, alone):
    def infinite(trainer):
        honest = trainer.loss
        trainer.loss = lambda *a: (lambda loss, sums: (loss * 1e38, sums))(*honest(*a))
        return trainer

    infinite(ranks.resumable("grpo", tmp_path, fp16=True, save_steps=1, max_steps=1)).train()
    resumed = run("grpo", tmp_path, fp16=True, resume=True)
    assert [row["overflows"] for row in resumed.history] == [1, 0, 0, 0]


def test_true_means_the_newest_or_the_start(tmp_path, alone, monkeypatch):
    begun = run("grpo", tmp_path, resume=True)
    assert len(begun.history) == 4
    assert checkpoint.resume_point(True, str(tmp_path)).name == "checkpoint-4"
    assert checkpoint.resume_point(None, str(tmp_path)) is None
    first = tmp_path / "checkpoint-2"
    assert checkpoint.resume_point(first, str(tmp_path)) == first
    with pytest.raises(ValueError, match="needs output_dir"):
        checkpoint.resume_point(True, None)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")  # a job that torchrun started again
    for asked in (None, first):
        assert checkpoint.resume_point(asked, str(tmp_path)).name == "checkpoint-4"
    assert checkpoint.resume_point(None, str(tmp_path / "none")) is None


def test_what_a_killed_run_left_is_swept(tmp_path, alone):
    for name in (".checkpoint-2", ".checkpoint-1.old", ".model"):
        (tmp_path / name).mkdir()
    run("grpo", tmp_path)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_a_step_that_was_saved_before_is_replaced(tmp_path, alone):
    run("grpo", tmp_path)
    old = (tmp_path / "checkpoint-4" / "state.json").stat().st_ino
    run("grpo", tmp_path, resume=tmp_path / "checkpoint-2")
    assert (tmp_path / "checkpoint-4" / "state.json").stat().st_ino != old


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLD_SIZE", "1")
        run("grpo", folder, "beta")
    return folder / "checkpoint-2"


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(bytes(data))


DAMAGE = {
    "state is cut off": ("state.json", truncate),
    "state is empty": ("state.json", lambda path: path.write_text("")),
    "state is a list": ("state.json", lambda path: path.write_text("[]")),
    "weights are cut off": ("weights.safetensors", truncate),
    "weights are gone": ("weights.safetensors", lambda path: path.unlink()),
    "a bit of the moments is wrong": ("optimizer.safetensors", flip),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_before_anything_changes(damage, saved, tmp_path, alone):
    folder = shutil.copytree(saved, tmp_path / "checkpoint-2")
    name, harm = DAMAGE[damage]
    harm(folder / name)
    trainer = ranks.resumable("grpo", tmp_path / "new", "beta")
    before = ranks.weights(trainer)
    with pytest.raises(ValueError, match="is damaged: .*; take an older one"):
        trainer.train(resume_from_checkpoint=folder)
    assert distance(before, ranks.weights(trainer)) == 0 and trainer.history == []


@pytest.mark.parametrize(
    "settings, says",
    [
        (dict(learning_rate=1e-4), "learning_rate=0.003, not 0.0001"),
        (dict(beta=0.2), "beta=0.1, not 0.2"),
        (dict(per_device_train_batch_size=8), "completions a step=16, not 8"),
        (dict(rows=ranks.ROWS[1:]), "a checksum of train_dataset"),
        (dict(model_seed=1), "a checksum of the frozen weights"),  # the reference
        (dict(kind="llama"), "a checksum of the frozen weights"),
        (dict(lora=True), "holds another model"),
    ],
)
def test_the_checkpoint_of_another_run_is_refused(settings, says, saved, tmp_path, alone):
    trainer = ranks.resumable("grpo", tmp_path, "beta", **settings)
    with pytest.raises(ValueError, match=says):
        trainer.train(resume_from_checkpoint=saved)


def test_what_only_changes_where_it_computes_may_change(saved, tmp_path, alone):
    free = dict(head="chunked", per_device_train_batch_size=8, gradient_accumulation_steps=2)
    trainer = run("grpo", tmp_path, "beta", resume=saved, max_steps=3, **free)
    assert len(trainer.history) == 3


def test_the_state_of_another_optimizer_is_refused(saved, tmp_path, alone):
    folder = shutil.copytree(saved, tmp_path / "checkpoint-2")
    file = folder / "optimizer.safetensors"
    save_file({n: t for n, t in load_file(file).items() if "exp_avg_sq" not in n}, file)
    state = json.loads((folder / "state.json").read_text())
    state["files"][file.name] = checkpoint.measured(file)
    (folder / "state.json").write_text(json.dumps(state))
    trainer = ranks.resumable("grpo", tmp_path, "beta")
    with pytest.raises(ValueError, match="holds the state of another optimizer than AdamW"):
        trainer.train(resume_from_checkpoint=folder)


def test_a_model_for_which_there_is_no_room_is_told_and_not_half_written(tmp_path, alone):
    trainer = run("grpo", tmp_path, save_steps=None)
    whole = (tmp_path / "model.safetensors").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(OSError, match="the model in .* could not be written .*too large"):
            trainer.save(str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "model.safetensors").read_bytes() == whole
    assert not (tmp_path / ".model").exists()
