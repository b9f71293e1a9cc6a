"""Page 08: a loss over a wide vocabulary, chunk by chunk, gradients in the forward pass."""

import torch
from torch import Tensor

from rlkit import head
from rlkit.course.exercises.exercise import Case, Exercise, Memory, Outputs, Wrong


def chunked_loss(hidden, weight, targets, chunk, temperature=1.0):
    """hidden [N, H], weight [V, H], targets [N]
    -> mean of -logp, d_hidden [N, H], d_weight [V, H]"""
    N = len(hidden)
    loss = hidden.new_zeros(())
    d_hidden, d_weight = torch.zeros_like(hidden), torch.zeros_like(weight)
    for at in range(0, N, chunk):
        h, y = hidden[at : at + chunk], targets[at : at + chunk, None]
        logp = (h @ weight.T / temperature).log_softmax(-1)  # [C, V]
        loss -= logp.gather(1, y).sum() / N
        d_logits = logp.exp()
        d_logits.scatter_add_(1, y, -torch.ones_like(h[:, :1]))
        d_logits /= N * temperature
        d_hidden[at : at + chunk] = d_logits @ weight
        d_weight += d_logits.T @ h
    return loss, d_hidden, d_weight


def library(
    hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int, temperature: float = 1.0
) -> Outputs:
    """rlkit's chunked head under this loss, with a tile of as many logits."""
    with torch.enable_grad():
        sides = [x.detach().requires_grad_() for x in (hidden, weight)]
        size = chunk * len(weight) * hidden.element_size()
        logp, _ = head.token_logps(
            *sides, targets, temperature=temperature, entropy=False, tile_bytes=size
        )
        loss = -logp.mean()
        return loss.detach(), *torch.autograd.grad(loss, sides)


# --- wrong answers


def pieces(hidden, weight, targets, chunk, temperature) -> list[tuple[int, Outputs]]:
    """(tokens, (sum of losses, d_hidden, d_weight)) of each chunk by itself."""
    out = []
    for at in range(0, len(hidden), chunk):
        rows = slice(at, at + chunk)
        h, count = hidden[rows], len(hidden[rows])
        loss, d_hidden, d_weight = chunked_loss(h, weight, targets[rows], count, temperature)
        out.append((count, (loss * count, d_hidden * count, d_weight * count)))
    return out


def joined(parts: list[Outputs]) -> Outputs:
    losses, d_hiddens, d_weights = zip(*parts, strict=True)
    return torch.stack(losses).sum(), torch.cat(d_hiddens), torch.stack(d_weights).sum(0)


def scaled(outputs: Outputs, factor: float) -> Outputs:
    return tuple(x * factor for x in outputs)


def mean_of_means(*args) -> Outputs:
    parts = pieces(*args)
    return joined([scaled(outputs, 1 / (count * len(parts))) for count, outputs in parts])


def mean_of_means_in_loss(*args) -> Outputs:
    return mean_of_means(*args)[0], *chunked_loss(*args)[1:]


def sum_of_means(*args) -> Outputs:
    return joined([scaled(outputs, 1 / count) for count, outputs in pieces(*args)])


def overwritten(*args) -> Outputs:
    loss, d_hidden, _ = chunked_loss(*args)
    return loss, d_hidden, pieces(*args)[-1][1][2] / len(args[0])


def overwritten_mean(*args) -> Outputs:
    loss, d_hidden, _ = chunked_loss(*args)
    count, outputs = pieces(*args)[-1]
    return loss, d_hidden, outputs[2] / count


def not_in_gradients(hidden, weight, targets, chunk, temperature) -> Outputs:
    loss, *gradients = chunked_loss(hidden, weight, targets, chunk, temperature)
    return loss, *scaled(tuple(gradients), temperature)


def not_in_loss(hidden, weight, targets, chunk, temperature) -> Outputs:
    _, *gradients = chunked_loss(hidden, weight, targets, chunk, temperature)
    return chunked_loss(hidden, weight, targets, chunk, 1.0)[0], *gradients


def in_first_chunk(hidden, weight, targets, chunk, temperature) -> Outputs:
    first = pieces(hidden, weight, targets, chunk, temperature)[:1]
    rest = pieces(hidden, weight, targets, chunk, 1.0)[1:]
    return scaled(joined([outputs for _, outputs in first + rest]), 1 / len(hidden))


def nowhere(hidden, weight, targets, chunk, temperature) -> Outputs:
    return chunked_loss(hidden, weight, targets, chunk, 1.0)


def summed(*args) -> Outputs:
    return scaled(chunked_loss(*args), len(args[0]))


def summed_gradients(*args) -> Outputs:
    loss, *gradients = chunked_loss(*args)
    return loss, *scaled(tuple(gradients), len(args[0]))


def turned(*args) -> Outputs:
    return scaled(chunked_loss(*args), -1)


def one_backward(hidden, weight, targets, chunk, temperature=1.0) -> Outputs:
    sides = [x.detach().requires_grad_() for x in (hidden, weight)]
    loss = hidden.new_zeros(())
    for at in range(0, len(hidden), chunk):
        logits = sides[0][at : at + chunk] @ sides[1].T / temperature
        logp = logits.log_softmax(-1).gather(1, targets[at : at + chunk, None])
        loss = loss - logp.sum() / len(hidden)
    return loss.detach(), *torch.autograd.grad(loss, sides)


WRONGS = [
    Wrong(
        "mean of means",
        "You average over chunks, and the last chunk is shorter.",
        "What does one token of a short chunk weigh? Divide each sum by N, the tokens of all.",
        [mean_of_means, mean_of_means_in_loss, sum_of_means],
    ),
    Wrong(
        "d_weight overwritten",
        "d_weight is that of the last chunk alone.",
        "Every token moves every row of the weight: what must happen to what was there?",
        [overwritten, overwritten_mean],
    ),
    Wrong(
        "temperature once",
        "The temperature is missing in one place.",
        "It divides the logits of every chunk; by the chain rule it divides the gradients too.",
        [not_in_gradients, in_first_chunk, nowhere, not_in_loss],
    ),
    Wrong(
        "summed",
        "This is a sum over tokens, not their mean.",
        "Divide by N, in the loss and in its gradients.",
        [summed, summed_gradients],
    ),
    Wrong(
        "sign", "Every sign is turned.", "The loss is -logp: likely targets cost little.", [turned]
    ),
]


def case(about: str, N: int, chunk: int, temperature: float, dtype: torch.dtype, V=5, H=3) -> Case:
    noise = torch.Generator().manual_seed(N)
    hidden, weight = (torch.randn(n, H, generator=noise).to(dtype) for n in (N, V))
    targets = torch.randint(V, (N,), generator=noise)
    return Case(about, (hidden, weight, targets, chunk, temperature))


EXERCISE = Exercise(
    name="chunked",
    page="08",
    solution=chunked_loss,
    library=library,
    twins=[head.token_logps],
    cases=[
        case("7 tokens in chunks of 3", 7, 3, 1.0, torch.float32),
        case("5 tokens in chunks of 2", 5, 2, 0.5, torch.float64),
        case("3 tokens in a chunk of 8", 3, 8, 2.0, torch.float32),
    ],
    wrongs=WRONGS,
    hints=(
        "Take hidden[at : at + chunk] in a loop. The mean is a sum over chunks, divided by N.",
        "The gradient of the logits is softmax less 1 at the target, over N times the "
        "temperature. Make it while the chunk's logits are there.",
        "d_hidden of the chunk is d_logits @ weight; d_weight += d_logits.T @ h. Then the next "
        "chunk may take the logits' place.",
    ),
    outputs=("loss", "d_hidden", "d_weight"),
    column="h",
    memory=Memory(
        case("256 tokens in chunks of 8, V = 128", 256, 8, 1.0, torch.float32, V=128, H=4),
        bytes=256 * 128 * 4 // 2,  # half of all logits; the solution holds a fifth
        wrong=Wrong(
            "one backward at the end",
            "But every chunk's logits are still alive at the end.",
            "What does one backward pass at the end need of each chunk? Make the gradients of "
            "a chunk before the next one, and keep no graph.",
            [one_backward],
        ),
    ),
)
