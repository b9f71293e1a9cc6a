"""One measured rank, a process that launcher.py starts: `python -m rlkit.memory.rank`.

It reads lines of JSON: first its job, then perhaps {"stop": true}. When the input ends, whoever
started it is gone, and so is the rank, whatever it was doing. It writes lines of JSON: where it is,
its bytes some ten times a second (the highest moment since the last line), each finished step, and
what went wrong. A thread of its own writes them, so that a slow reader never holds up training.

Nothing here imports torch before the threads that listen and report are running.
"""

import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from rlkit.memory.settings import Setting

REPORT_SECONDS = 0.1
BEAT_SECONDS = 1.0
"""At least so often a rank says that it is alive."""
ROWS = 2_000
"""Most rows of the timeline of one step."""


# --- the process


def main() -> None:
    """Runs the job; leaves when it is told to, or when nobody is there to tell."""
    die_with_parent()
    voice = Voice()
    job = json.loads(sys.stdin.readline() or "null")
    if job is None:
        leave(1)
    watch = Watch(voice)
    threading.Thread(target=listen, args=(watch,), daemon=True).start()
    threading.Thread(target=report, args=(watch, os.getppid()), daemon=True).start()
    try:
        run(job, watch)
    except BaseException as error:
        voice.say(**describe(error))
        leave(2)
    watch.finish()
    threading.Event().wait()  # for the input to end: the others may still need this rank


def die_with_parent() -> None:
    """Linux kills this process with the thread that started it; elsewhere the input's end does."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interrupt ends a rank at once
    if sys.platform == "linux":
        set_death_signal = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL, 0, 0, 0)


def leave(code: int) -> NoReturn:
    """Exits without the interpreter's teardown, in which gloo's threads may abort."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)


def listen(watch: "Watch") -> None:
    """Reads wishes until the input ends."""
    for line in sys.stdin:
        if json.loads(line).get("stop"):
            watch.stop()
    leave(0 if watch.finished else 1)


def report(watch: "Watch", parent: int) -> None:
    """Writes what there is to say, ten times a second, while the parent lives."""
    while os.getppid() == parent:
        with contextlib.suppress(RuntimeError):  # a dict that grew while it was read: next time
            watch.sample()
        watch.voice.flush()
        time.sleep(REPORT_SECONDS)
    leave(1)


class Voice:
    """Standard output, kept for lines of JSON: what libraries print there goes to stderr."""

    def __init__(self) -> None:
        self.file = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self.queue: deque[dict[str, Any]] = deque()
        self.lock, self.spoken = threading.Lock(), 0.0

    def tell(self, **message: Any) -> None:
        """Soon, by the thread that reports."""
        self.queue.append({"at": time.perf_counter(), **message})

    def say(self, **message: Any) -> None:
        """Now."""
        self.tell(**message)
        self.flush()

    def flush(self) -> None:
        """Writes what waits; leaves if nobody reads any more."""
        with self.lock:
            if not self.queue and time.perf_counter() - self.spoken > BEAT_SECONDS:
                self.tell()
            try:
                while self.queue:
                    self.file.write(json.dumps(self.queue.popleft()) + "\n")
                    self.spoken = time.perf_counter()
                self.file.flush()
            except (OSError, ValueError):
                leave(1)


def describe(error: BaseException) -> dict[str, Any]:
    """An error for the parent. lost: it only says that another rank is gone, or silent."""
    from rlkit import failure

    failure.first_to_fail()
    text = str(error) or type(error).__name__
    lost = any(sign in text for sign in failure.LOST) or bool(failure.TIMED_OUT.search(text))
    return {"error": failure.sentence(error) if lost else text, "lost": lost}


class Watch:
    """What a rank tells of its training, and how it is told to stop."""

    def __init__(self, voice: Voice) -> None:
        self.voice, self.lock = voice, threading.Lock()
        self.trainer: Any = None
        self.meter: Any = None
        self.seen, self.finished = -1.0, False

    def place(self, words: str) -> None:
        """Where this rank is."""
        self.voice.tell(place=words)

    def stop(self) -> None:
        """Ends after the step that is under way; before the first one, at once."""
        if self.trainer is None:
            leave(0)
        self.trainer.stop()

    def finish(self) -> None:
        """All is done."""
        self.finished = True
        self.voice.say(done=True)

    def begin(self, trainer: Any, part: int) -> None:
        """Training begins: every step of it is watched."""
        from rlkit.memory.meter import Meter

        self.meter = trainer.meter = Meter(trainer, device=trainer.world.device.type, samples=ROWS)
        trainer.callbacks.append(self.step)
        self.seen, self.trainer = -1.0, trainer
        self.voice.tell(part=part, place="step 1")

    def end(self) -> None:
        """What a part held is freed before the next one is built."""
        self.trainer.meter = self.trainer = self.meter = None
        gc.collect()

    def sample(self) -> None:
        """Tells the highest moment since the last sample, if anything has happened."""
        from rlkit.memory.timeline import grouped

        with self.lock:
            if (meter := self.meter) is None:
                return
            rows = [row for row in meter.timeline.rows if row[0] > self.seen]
            if not rows:
                return
            self.seen = rows[-1][0]
            seconds, phase, _, amounts = max(rows, key=lambda row: row[2])
            found = grouped(list(meter.ledger.kinds), amounts, "category")
            self.voice.tell(at=meter.start + seconds, phase=phase, bytes=found)

    def step(self, row: dict[str, Any]) -> None:
        """Called by the trainer after each step."""
        self.sample()
        numbers = {k: v for k, v in row.items() if isinstance(v, int | float)}
        moment = vars(self.meter.at_peak)
        self.voice.tell(step=numbers, peak=moment, phases=by_phase(self.meter))
        with self.lock:
            self.meter.clear()
            self.seen = -1.0


def by_phase(meter: Any) -> dict[str, dict[str, int]]:
    """Phase -> the bytes by category at its highest moment."""
    from rlkit.memory.timeline import grouped

    highest: dict[str, tuple] = {}
    for row in meter.timeline.rows:
        highest[row[1]] = max(row, highest.get(row[1], row), key=lambda row: row[2])
    kinds = list(meter.ledger.kinds)
    return {phase: grouped(kinds, row[3], "category") for phase, row in highest.items()}


# --- the training


def run(job: dict[str, Any], watch: Watch) -> None:
    """job: {"parts": settings as dicts, one after another on the same ranks, "options": fields of
    the config that a plan does not know, "made_up": whether weights and task are invented}."""
    watch.place("imports torch")
    from rlkit.distributed import join
    from rlkit.memory.settings import Setting

    watch.place("waits for the others")
    join(job["options"]["ddp_timeout"])
    for number, fields in enumerate(job["parts"]):
        watch.place("builds the model")
        trainer = trainer_of(Setting(**fields), job["options"], job["made_up"])
        watch.begin(trainer, number)
        done = len(trainer.train())
        del trainer
        watch.end()
        if done < job["options"]["max_steps"]:  # stopped, and every rank knows it
            return


def trainer_of(setting: "Setting", options: dict[str, Any], made_up: bool) -> Any:
    """A trainer of this setting. options: more fields of its config.

    made_up: weights drawn at random, prompts without a sense, completions that never end: steps as
    full as a plan takes them to be. Otherwise the model's own weights, on two-number sums.
    """
    import rlkit
    from rlkit.memory.step import adapters
    from rlkit.tasks import load_task

    args = setting.train_config()
    args = type(args)(**vars(args) | {"disable_tqdm": True} | options)
    trainer_class = getattr(rlkit, f"{setting.algorithm.upper()}Trainer")
    lora = adapters(setting.lora_rank)
    if not made_up:
        task = load_task("sums")
        return trainer_class(setting.name, task.reward, args, task.train, peft_config=lora)
    model = made_up_model(setting.config, args.seed)
    words = MadeUpWords(model, setting.prompt_length)
    rewards = [words.reward]
    if setting.reward_model:
        rewards.append(made_up_model(setting.config, args.seed, "SequenceClassification"))
    trainer = trainer_class(
        model, rewards, args, words.prompts, processing_class=words, peft_config=lora
    )
    trainer.eos_ids = [-1]  # so that no completion ends
    return trainer


def made_up_model(config: dict[str, Any], seed: int, kind: str = "CausalLM") -> Any:
    """A model of this shape with weights drawn at random; a classifier has one label."""
    import torch
    import transformers

    torch.manual_seed(seed)
    values = {k: v for k, v in config.items() if k not in ("dtype", "torch_dtype")}
    if kind != "CausalLM":
        values |= {"num_labels": 1}
    shape = transformers.AutoConfig.for_model(**values)
    model_class = getattr(transformers, f"AutoModelFor{kind}")
    return model_class.from_config(shape, dtype=torch.float32)


class MadeUpWords:
    """A tokenizer of any vocabulary whose tokens mean nothing, and a task in them.

    Tokens are ranked along a direction that was drawn among the rows of the output head; a
    completion's reward is the mean rank of its tokens, from 0 to 1. A model that knows nothing gets
    a half and can do better by turning its hidden states; hardly two completions get the same, so
    that every row teaches.
    """

    eos_token_id, pad_token_id = 1, 0

    def __init__(self, model: Any, prompt_length: int) -> None:
        import torch

        weight = model.get_output_embeddings().weight.detach()
        order = (weight @ torch.randn(weight.size(1))).argsort().argsort()
        self.size, self.ranked = len(weight), (order / len(weight)).tolist()
        self.prompts = [{"prompt": chr(97 + i) * prompt_length} for i in range(26)]

    def __len__(self) -> int:
        return self.size

    def __call__(self, text: str, **kwargs: Any) -> dict[str, list[int]]:
        return {"input_ids": [2 + (ord(c) + i) % (self.size - 2) for i, c in enumerate(text)]}

    def get_vocab(self) -> dict[str, int]:
        """Tokens by their number."""
        return {str(i): i for i in range(self.size)}

    def batch_decode(self, ids: list[list[int]], **kwargs: Any) -> list[str]:
        """Nothing is ever read."""
        return [""] * len(ids)

    def reward(self, completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        """In the form of reward functions."""
        return [sum(self.ranked[i] for i in ids) / len(ids) for ids in completion_ids]


if __name__ == "__main__":
    main()
