"""Page 00: one minute of training, greedy accuracy on held-out sums before and after."""

from rlkit.course.evidence.effect import Effect, Evidence


def measure(seed: int) -> dict[str, float]:
    """The page's own run with another seed."""
    import rlkit
    from rlkit.tasks import load_task

    task = load_task("sums")
    trainer = rlkit.GRPOTrainer(
        model="adder",
        reward_funcs=task.reward,
        args=rlkit.GRPOConfig.preset("tiny", seed=seed, disable_tqdm=True),
        train_dataset=task.train,
        eval_dataset=task.eval,
    )
    before = trainer.evaluate()["accuracy"]
    trainer.train()
    return {"before": before, "after": trainer.evaluate()["accuracy"]}


EVIDENCE = Evidence(
    says="a minute of rewards teaches the model to add",
    measure=measure,
    effects=(Effect("after", "before", at_least=0.2),),
)
