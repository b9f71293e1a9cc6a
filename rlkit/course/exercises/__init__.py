"""The exercises of the course, in the order of its pages; one file each."""

from rlkit.course.exercises import chunked, clip, gae, k3, leave_one_out, masks, online_softmax
from rlkit.course.exercises.exercise import Exercise

EXERCISES: dict[str, Exercise] = {
    module.EXERCISE.name: module.EXERCISE
    for module in (masks, leave_one_out, clip, gae, k3, chunked, online_softmax)
}
