"""Page 07, the Memory Lab: it keeps nothing, so each section makes its own lab."""

from rlkit.course.pages.section import Section

LAB = ("rlkit.widgets.memory.MemoryLab", "rlkit.memory.card_bytes")

SECTIONS: dict[str, Section] = {
    "7.1": Section((*LAB, "rlkit.memory.picture.by_hand")),
    "7.2": Section(LAB),
    "7.3": Section(LAB),
    "7.4": Section(LAB),
    "7.5": Section(LAB),
    "7.6": Section(("rlkit.claims", "rlkit.paths.data_path")),
}
