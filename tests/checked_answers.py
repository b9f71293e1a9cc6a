"""What learners write: bodies of the exercises' functions, right ones by style, wrong by mistake.

None of them calls rlkit, and none is made from the code that the checks hold.
"""

RIGHT = {
    "masks": {
        "loop": """
            mask = torch.zeros(completion_ids.shape, dtype=torch.bool)
            finished = torch.zeros(len(completion_ids), dtype=torch.bool)
            for b, row in enumerate(completion_ids.tolist()):
                for t, token in enumerate(row):
                    mask[b, t] = True
                    if token in eos_ids.tolist():
                        finished[b] = True
                        break
            return mask, finished
        """,
        "position of the first": """
            is_eos = (completion_ids[:, :, None] == eos_ids).any(-1)
            T = completion_ids.shape[1]
            finished = is_eos.any(1)
            first = torch.where(finished, is_eos.float().argmax(1), T)
            return torch.arange(T) <= first[:, None], finished
        """,
        "shifted": """
            is_eos = torch.isin(completion_ids, eos_ids)
            before = torch.cat([torch.zeros_like(is_eos[:, :1]), is_eos[:, :-1]], 1)
            return before.long().cummax(1).values == 0, is_eos.sum(1) > 0
        """,
    },
    "leave_one_out": {
        "loop": """
            out = torch.zeros_like(rewards)
            for i in range(len(rewards)):
                start = i // num_generations * num_generations
                others = [
                    rewards[j] for j in range(start, start + num_generations) if j != i
                ]
                out[i] = rewards[i] - sum(others) / len(others)
            return out
        """,
        "from the mean": """
            groups = rewards.reshape(-1, num_generations)
            centred = groups - groups.mean(1, keepdim=True)
            return (centred * num_generations / (num_generations - 1)).reshape(-1)
        """,
        "matrix": """
            G = num_generations
            others = (1 - torch.eye(G, dtype=rewards.dtype)) / (G - 1)
            return rewards - (rewards.view(-1, G) @ others).flatten()
        """,
    },
    "clip": {
        "loop": """
            ratio = torch.exp(logp - logp_old)
            near = ratio.clamp(1 - epsilon, 1 + epsilon)
            return torch.max(-ratio * advantages, -near * advantages)
        """,
        "by sign": """
            ratio = torch.exp(logp) / torch.exp(logp_old)
            good = torch.minimum(ratio, torch.ones_like(ratio) + epsilon)
            bad = torch.maximum(ratio, torch.ones_like(ratio) - epsilon)
            return -advantages * torch.where(advantages > 0, good, bad)
        """,
    },
    "gae": {
        "loop": """
            m = mask.to(values.dtype)
            V = values * m
            out = torch.zeros_like(V)
            last = 0.0
            for t in range(V.shape[1] - 1, -1, -1):
                after = V[:, t + 1] if t + 1 < V.shape[1] else 0.0
                delta = (rewards[:, t] + gamma * after - V[:, t]) * m[:, t]
                out[:, t] = last = delta + gamma * lam * last
            return out, out + V
        """,
        "sum of deltas": """
            V = values.masked_fill(~mask, 0.0)
            after = torch.cat([V[:, 1:], torch.zeros_like(V[:, :1])], 1)
            deltas = rewards + gamma * after - V
            T = V.shape[1]
            columns = []
            for t in range(T):
                columns.append(sum((gamma * lam) ** k * deltas[:, t + k] for k in range(T - t)))
            advantages = torch.stack(columns, 1)
            return advantages, advantages + V
        """,
        "row by row": """
            advantages = torch.zeros_like(values)
            for b in range(len(values)):
                n = int(mask[b].sum())
                a = v = 0.0
                for t in reversed(range(n)):
                    a = rewards[b, t] + gamma * v - values[b, t] + gamma * lam * a
                    v = values[b, t]
                    advantages[b, t] = a
            return advantages, advantages + values
        """,
    },
    "k3": {
        "loop": """
            y = logp_ref - logp
            return (torch.expm1(y) - y).masked_fill(~mask, 0.0)
        """,
        "double": """
            y = (logp_ref - logp).double()
            estimate = (y.exp() - 1 - y).to(logp.dtype)
            return torch.where(mask, estimate, torch.zeros_like(estimate))
        """,
        "cleaned first": """
            x = torch.where(mask, logp - logp_ref, 0.0)
            return (torch.expm1(-x) + x) * mask
        """,
    },
    "chunked": {
        "loop": """
            N = len(hidden)
            total = torch.zeros((), dtype=hidden.dtype)
            d_hidden = torch.empty_like(hidden)
            d_weight = torch.zeros_like(weight)
            for at in range(0, N, chunk):
                rows = slice(at, at + chunk)
                h = hidden[rows].detach().requires_grad_()
                w = weight.detach().requires_grad_()
                logits = h @ w.T / temperature
                loss = torch.nn.functional.cross_entropy(logits, targets[rows], reduction="sum") / N
                dh, dw = torch.autograd.grad(loss, [h, w])
                total += loss.detach()
                d_hidden[rows] = dh
                d_weight += dw
            return total, d_hidden, d_weight
        """,
        "backward": """
            w = weight.detach().clone().requires_grad_()
            h = hidden.detach().clone().requires_grad_()
            loss = 0.0
            for some, y in zip(h.split(chunk), targets.split(chunk)):
                logp = torch.log_softmax(some @ w.T / temperature, -1)
                part = -logp[torch.arange(len(y)), y].sum() / len(hidden)
                part.backward()
                loss = loss + part.detach()
            return loss, h.grad, w.grad
        """,
    },
    "online_softmax": {
        "loop": """
            out = []
            V = logits.shape[1]
            for row, y in zip(logits, targets.tolist()):
                m, s = row[0], torch.zeros((), dtype=logits.dtype)
                for at in range(0, V, block):
                    z = row[at : at + block]
                    new = torch.max(m, z.max())
                    s = s * torch.exp(m - new) + torch.exp(z - new).sum()
                    m = new
                out.append(row[y] - m - torch.log(s))
            return torch.stack(out)
        """,
        "logaddexp": """
            log_z = torch.full_like(logits[:, 0], -torch.inf)
            for at in range(0, logits.shape[1], block):
                log_z = torch.logaddexp(log_z, logits[:, at : at + block].logsumexp(1))
            return logits.gather(1, targets[:, None])[:, 0] - log_z
        """,
        "padded": """
            V = logits.shape[1]
            m = logits.new_full((len(logits), 1), -float("inf"))
            s = torch.zeros_like(m)
            for at in range(0, V, block):
                z = logits.new_full((len(logits), block), -float("inf"))
                z[:, : min(block, V - at)] = logits[:, at : at + block]
                new = torch.maximum(m, z.max(1, keepdim=True).values)
                s = s * (m - new).exp() + (z - new).exp().sum(1, keepdim=True)
                m = new
            return (logits.gather(1, targets[:, None]) - m - s.log()).squeeze(1)
        """,
    },
}

GROUPS = "g = rewards.view(-1, num_generations)\n"
ONLINE = """
m = torch.full_like(logits[:, 0], -1e30)
s = torch.zeros_like(m)
for at in range(0, logits.shape[1], block):
    z = logits[:, at : at + block]
    {pad}
    new = torch.maximum(m, z.max(1).values)
    {update}
    m = new
return {chosen} - m - s.log()
"""
UPDATE = "s = s * (m - new).exp() + (z - new[:, None]).exp().sum(1)"
CHOSEN = "logits.gather(1, targets[:, None])[:, 0]"
GAE = """
T = values.shape[1]
V = {values}
out = torch.zeros_like(values)
last = 0.0
for t in {order}:
    after = V[:, t + 1] if t + 1 < T else 0.0
    delta = {reward} + gamma * after - V[:, t]
    out[:, t] = last = delta + {decay} * last
return out, out + V
"""
GAE_RIGHT = dict(
    values="values * mask", order="reversed(range(T))", reward="rewards[:, t]", decay="gamma * lam"
)
CHUNKED = """
N, loss, dh, dw = len(hidden), 0.0, [], torch.zeros_like(weight)
for at in range(0, N, chunk):
    h, y = hidden[at : at + chunk], targets[at : at + chunk]
    p = torch.softmax(h @ weight.T / {inside}, -1)
    rows = torch.arange(len(y))
    loss = loss - {share} * p[rows, y].log().sum()
    p[rows, y] -= 1
    p = p * {share} / {outside}
    dh.append(p @ weight)
    dw {add} p.T @ h
return loss, torch.cat(dh), dw
"""
CHUNKED_RIGHT = dict(inside="temperature", outside="temperature", share="1 / N", add="+=")

WRONG = {
    "masks": [
        ("EOS dropped", """
            ended = torch.isin(completion_ids, eos_ids).cumsum(1) > 0
            return ~ended, ended.any(1)
        """),
        # two mistakes: the first that shows is named
        ("EOS dropped", """
            ended = (completion_ids == eos_ids[0]).cumsum(1) > 0
            return ~ended, ended.any(1)
        """),
        ("not pad", """
            is_eos = torch.isin(completion_ids, eos_ids)
            return torch.logical_not(is_eos), is_eos.any(1)
        """),
        ("shifted by one", """
            is_eos = torch.isin(completion_ids, eos_ids)
            before = is_eos.cumsum(1) - is_eos.long()
            mask = torch.ones_like(is_eos)
            mask[:, 1:] = (before == 0)[:, :-1]
            return mask, is_eos.any(1)
        """),
        ("no EOS", """
            is_eos = torch.isin(completion_ids, eos_ids)
            end = is_eos.int().argmax(1)
            return torch.arange(is_eos.shape[1])[None] <= end[:, None], is_eos.any(1)
        """),
        ("last EOS", """
            is_eos = torch.isin(completion_ids, eos_ids)
            T = is_eos.shape[1]
            last = torch.where(is_eos, torch.arange(T), -1).max(1).values
            last = torch.where(last < 0, T, last)
            return torch.arange(T) <= last[:, None], is_eos.any(1)
        """),
        ("finished", """
            is_eos = torch.isin(completion_ids, eos_ids)
            return is_eos.cumsum(1) - is_eos.long() == 0, is_eos[:, -1]
        """),
    ],
    "leave_one_out": [
        ("own reward inside", GROUPS + "return (g - g.mean(1, keepdim=True)).flatten()"),
        ("divided by G", GROUPS + """
others = g.sum(1)[:, None] - g
return rewards - others.flatten() / num_generations
"""),
        ("grouped by columns", """
            g = rewards.view(num_generations, -1)
            return (g - (g.sum(0, keepdim=True) - g) / (num_generations - 1)).flatten()
        """),
        ("baseline returned", GROUPS + """
return ((g.sum(1, keepdim=True) - g) / (num_generations - 1)).flatten()
"""),
        ("whole batch", "return rewards - (rewards.sum() - rewards) / (rewards.numel() - 1)"),
        ("sign", GROUPS + """
return ((g.sum(1, keepdim=True) - g) / (num_generations - 1) - g).flatten()
"""),
        ("divided by the spread", GROUPS + """
return ((g - g.mean(1, keepdim=True)) / g.std(1, keepdim=True)).flatten()
"""),
    ],
    "clip": [
        ("max for min", """
            r = (logp - logp_old).exp()
            return -torch.max(r * advantages, r.clamp(1 - epsilon, 1 + epsilon) * advantages)
        """),
        ("no min", """
            r = (logp - logp_old).exp()
            return -torch.clamp(r, 1 - epsilon, 1 + epsilon) * advantages
        """),
        ("old over new", """
            r = torch.exp(logp_old - logp)
            return -torch.min(r * advantages, r.clamp(1 - epsilon, 1 + epsilon) * advantages)
        """),
        ("sign", """
            r = torch.exp(logp - logp_old)
            return torch.min(r * advantages, r.clamp(1 - epsilon, 1 + epsilon) * advantages)
        """),
        ("no clip", "return -torch.exp(logp - logp_old) * advantages"),
        ("ratio of log-probs", """
            r = logp - logp_old
            return -torch.min(r * advantages, r.clamp(1 - epsilon, 1 + epsilon) * advantages)
        """),
    ],
    "gae": [
        ("reward in the last column", GAE.format(**GAE_RIGHT | dict(
            reward="(rewards.sum(1) if t == T - 1 else 0.0)"))),
        ("padding leaks", GAE.format(**GAE_RIGHT | dict(values="values"))),
        ("forward loop", GAE.format(**GAE_RIGHT | dict(order="range(T)"))),
        ("one discount", GAE.format(**GAE_RIGHT | dict(decay="gamma"))),
        ("one discount", GAE.format(**GAE_RIGHT | dict(decay="lam"))),
        ("no value subtracted", GAE.format(**GAE_RIGHT).replace(" - V[:, t]", "")),
        ("returns", GAE.format(**GAE_RIGHT).replace("out + V", "out + rewards")),
    ],
    "k3": [
        ("reversed", """
            y = logp - logp_ref
            return torch.where(mask, torch.expm1(y) - y, 0.0)
        """),
        ("no -1", """
            x = logp - logp_ref
            return torch.where(mask, (-x).exp() + x, 0.0)
        """),
        ("expm1", """
            y = logp_ref - logp
            return torch.where(mask, y.exp() - y - 1, 0.0)
        """),
        ("padding", """
            y = logp_ref - logp
            return mask * (torch.expm1(y) - y)
        """),
        ("padding", "y = logp_ref - logp\nreturn torch.expm1(y) - y"),
        ("padding", "y = logp_ref - logp\nreturn mask * (y.exp() - 1 - y)"),
        ("k1", "return torch.where(mask, logp - logp_ref, 0.0)"),
    ],
    "chunked": [
        ("mean of means", """
            w = weight.detach().clone().requires_grad_()
            h = hidden.detach().clone().requires_grad_()
            parts, count = 0.0, -(-len(h) // chunk)
            for some, y in zip(h.split(chunk), targets.split(chunk)):
                logits = some @ w.T / temperature
                part = torch.nn.functional.cross_entropy(logits, y) / count
                part.backward()
                parts = parts + part.detach()
            return parts, h.grad, w.grad
        """),
        ("one backward at the end", """
            w = weight.detach().clone().requires_grad_()
            h = hidden.detach().clone().requires_grad_()
            losses = []
            for some, y in zip(h.split(chunk), targets.split(chunk)):
                logits = some @ w.T / temperature
                losses.append(torch.nn.functional.cross_entropy(logits, y, reduction="sum"))
            loss = torch.stack(losses).sum() / len(hidden)
            loss.backward()
            return loss.detach(), h.grad, w.grad
        """),
        ("d_weight overwritten", CHUNKED.format(**CHUNKED_RIGHT | dict(add="="))),
        ("temperature once", CHUNKED.format(**CHUNKED_RIGHT | dict(outside="1"))),
        ("temperature once", CHUNKED.format(**CHUNKED_RIGHT | dict(
            inside="(temperature if at == 0 else 1)", outside="(temperature if at == 0 else 1)"))),
        ("summed", CHUNKED.format(**CHUNKED_RIGHT | dict(share="1"))),
    ],
    "online_softmax": [
        ("no rescaling", ONLINE.format(
            pad="", chosen=CHOSEN, update="s = s + (z - new[:, None]).exp().sum(1)")),
        ("exp(new - old)", ONLINE.format(
            pad="if at == 0:\n        m = z.max(1).values", chosen=CHOSEN,
            update=UPDATE.replace("m - new", "new - m"))),
        ("other=0", ONLINE.format(
            pad="z = torch.nn.functional.pad(z, (0, block - z.shape[1]))", chosen=CHOSEN,
            update=UPDATE)),
        ("target in the first tile", ONLINE.format(
            pad="", update=UPDATE,
            chosen="logits[torch.arange(len(targets)), targets.clamp(max=block - 1)]")),
        ("no maximum", """
            s = 0.0
            for at in range(0, logits.shape[1], block):
                s = s + logits[:, at : at + block].exp().sum(1)
            return logits.gather(1, targets[:, None])[:, 0] - s.log()
        """),
        ("all at once", "return torch.log_softmax(logits, -1).gather(1, targets[:, None])[:, 0]"),
    ],
}  # fmt: skip
