"""Page 06: six mistakes, what the learning curve says of each, and what its probe says."""

from rlkit.course.evidence.effect import Effect, Evidence

STEPS = 40


def measure(seed: int) -> dict[str, float]:
    """Greedy accuracy after STEPS steps, and the share of content probes, of all seven steps."""
    from rlkit.course.probes import examine
    from rlkit.course.student import Student
    from rlkit.course.suspects import SUSPECTS, Parts, Training, suspect

    numbers = {}
    for who in ("right", *SUSPECTS):
        parts = Parts() if who == "right" else suspect(who)
        student = Student(seed=seed)
        train = Training(student, parts)
        for k in range(STEPS):
            train(k)
        answers = examine(parts).values()
        numbers[f"accuracy {who}"] = student.evaluate()["accuracy"]
        numbers[f"probes {who}"] = sum(answers) / len(answers)
    return numbers


EVIDENCE = Evidence(
    says="each of six mistakes fails a probe, whatever its learning curve looks like",
    measure=measure,
    effects=tuple(Effect("probes right", f"probes {letter}") for letter in "ABCDEF"),
)
