"""The memory of a model's batches, in bytes, and the largest that fit a device. Pure arithmetic, without torch.

A batch's memory follows from the model's shapes; the room follows from the device's whole memory minus the weights, the
packed weights decoded at a time, and a share for fragmentation. Both are the same in every process on one kind of
device, and so are the batches, also of a resumed run. Free memory counts only if it is less, because others use the
device: limits are then lowered until they fit, and `MemoryPlan.short` marks it in the line that every run prints.
Limits change only in the steps of `LADDER`, `ROWS` and `rounded_down`: on a GPU the composition of a batch determines
the last digits of its numbers.

On a CPU the limits are constants, by which recorded numbers and packs were made, unless too little memory is free.
"""

from dataclasses import dataclass, replace
from typing import Any

from q36eval.checkpoints.attention_shape import RECURRENT, attention_shape

CPU_SCORE_BATCH_TOKENS = 2048
"""The limit of a core's own cache: 4,096 tokens took 1.2 times as long per token on the sandbox with two workers."""

GENERATE_BATCH_TOKENS = 16384

GENERATE_BATCH_ROWS = 192

ANSWERED_BYTES = 2**30
"""The cache memory of a CPU batch's rows, at `TYPICAL_TOKENS` each: 45 rows of SmolLM2, whose 280 canaries took 126 s
in batches of 32 and 142 s in batches of 48. Models with recurrent layers, by which recorded numbers were made, keep
their batches."""

CHUNK_TOKENS = 64
"""The chunk size of Gated DeltaNet. A prefix of whole chunks keeps those of the rest aligned, and in BF16 nearly every
state equals the one without sharing bit for bit; any other prefix shifts all."""

WORTH_SHARING = 768
"""A prefix is computed separately if that saves this many tokens: smaller savings are lost to the additional passes."""

WORTH_SHARING_OF_BATCH = 0.5
"""On a GPU this share of a full batch, if larger: launching a pass takes as long as computing some thousand tokens. On
one H100 at the full shape 1,140 questions after 57 prefixes, 200 at a time, took 168 s in passes of 0.25 s, while all
their 848,165 tokens would have taken 31."""

ATTENDED_TOKENS = 16
"""Rows of a batch and their prefixes may total this many times the tokens of a batch: the memory of attention."""

LADDER = (16384, 8192, 4096, 2048, 1024, 512)
"""Tokens per pass. With fewer than the last, reading the weights dominates: if even that runs out of memory, the batch
is split."""
ROWS = (256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
"""Answers that are generated together."""

PASS_TOKENS = 2 * max(LADDER)
"""Maximum in one pass over long rows; a CPU has no such limit. The expert inputs of 128k tokens have more values than a
kernel counts in 32 bits."""

FRAGMENTATION = 0.03
"""The share of a device's memory reserved for blocks that the allocator holds but cannot use."""
CONTEXT_BYTES = 256 * 2**20
"""Memory of a CUDA context and the libraries' workspaces."""

TYPICAL_TOKENS = 1024
"""Prompt and answer of a row for planning the number of rows; a batch of longer ones has fewer."""
READING_SHARE = 0.25
"""The share of the room for batches for a pass that reads prompts; the rest is for the rows' caches."""
STATE_COPIES = 2
"""Copies of a row's states while it is answered: after its prompt, and where steps write them."""
KEY_COPIES = 1.25
"""Copies of its keys, besides the prompt's: where steps write them, and one of four or more layers' while they move."""
COLUMNS_ROUNDED = 1.25
"""The usual factor of columns in the steps' memory over tokens of rows; at most one and a half."""
STEP_COPIES_BYTES = 2 + 4 + 4 * 8
"""Bytes per logit of a step: the head's, in float32, and four float64 copies for sampling."""
TILE_ROWS = 1024
TILE_COPIES = 2
"""Scored texts: the maximum number of copies of the logits of one tile."""


def _expert_shapes(config: Any) -> list[tuple[int, int]]:
    """The number of experts per token and their width; 1 and its width for a dense MLP."""

    def first(*names: str) -> int:
        return next((value for name in names if (value := getattr(config, name, None))), 0)

    routed = first("num_experts_per_tok", "moe_k"), first("moe_intermediate_size", "intermediate_size")
    dense = 1, first("intermediate_size", "n_inner") or 4 * config.hidden_size
    return [routed] if routed[0] and not hasattr(config, "first_k_dense_replace") else [routed, dense]


def _recurrent_shape(config: Any, b: int, fused_delta: bool) -> tuple[int, int, int]:
    """For a recurrent layer: bytes in use per token, and the values of a row's state and of its convolution."""
    float32 = 4
    if getattr(config, "linear_num_value_heads", None):
        value_heads, key_width = config.linear_num_value_heads, config.linear_key_head_dim
        keys, values = value_heads * key_width, value_heads * config.linear_value_head_dim
        conv = 2 * config.linear_num_key_heads * key_width + values
        # queries, keys and values before and after the convolution, repeated for the value heads, and the output's gate
        delta = 3 * conv * b + (2 * keys + values) * b
        if fused_delta:
            # w, u, new values and the output; a state for each chunk; the products within a chunk
            delta += (keys + 3 * values) * b + values * key_width * b // CHUNK_TOKENS
            delta += value_heads * CHUNK_TOKENS * (b + float32)
        else:
            delta += (7 * keys + 4 * values + 5 * value_heads * CHUNK_TOKENS) * float32
        return delta, values * key_width, conv * config.linear_conv_kernel_dim
    if getattr(config, "mamba_n_heads", None):
        inner = config.mamba_n_heads * config.mamba_d_head
        conv = inner + 2 * config.mamba_n_groups * config.mamba_d_state
        states = config.mamba_n_heads * config.mamba_d_state * float32  # B and C, repeated for the heads
        return 3 * conv * b + 8 * inner * float32 + 4 * states, inner * config.mamba_d_state, conv * config.mamba_d_conv
    if getattr(config, "conv_L_cache", None):
        return 6 * config.hidden_size * b, 0, config.hidden_size * config.conv_L_cache
    return 0, 0, 0


@dataclass(frozen=True)
class Costs:
    """Bytes of one model's batches, without its weights."""

    kv_token: int
    """Keys and values of one token, in all full-attention layers."""
    recurrent_row: int
    """Recurrent states of one row, in all Gated DeltaNet layers, float32."""
    conv_row: int
    """Convolution states of one row."""
    pass_token: int
    """Peak memory of the largest layer per token in it."""
    attended_token: int
    """Keys and values of one earlier token in one layer, for every head that reads them or once for those that share
    them."""
    mask_entry: int
    """One token's mask entry for one other, if a mask is used; else 0."""
    step_row: int
    """Logits of one row of a decoding step, in all their copies."""
    logits_tile: int
    """Logits of scored texts held at a time, while no batch is computed."""
    result_token: int
    """Hidden states of one scored token, for the returned batch and the one in progress."""

    @classmethod
    def of(
        cls,
        config: Any,
        *,
        itemsize: int = 2,
        emulated: bool = False,
        fused_delta: bool = False,
        fused_layers: bool = False,
        unmasked: bool = False,
        one_layer: bool = False,
    ) -> "Costs":
        """From a transformers config and the bytes of a value in the model's dtype.

        `emulated`: inputs of modules are quantized. `fused_delta`: Gated DeltaNet runs in kernels that keep their
        intermediate values in the model's dtype, not in transformers' float32 operations; `fused_layers`: so do norms,
        experts and what quantizes inputs (`engines.qwen3_5_moe.fused_layers`). `unmasked`: attention to earlier tokens
        needs no mask and no copies of keys (`engines.qwen3_5_moe.attention`). `one_layer`: rows go through one layer
        after another, so that only one layer caches them at a time. A sliding window counts as a full one.
        """
        b, float32 = itemsize, 4
        hidden = config.hidden_size
        heads, kv_heads, key_head, value_head = attention_shape(config)
        head = max(key_head, value_head)
        kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
        linear = sum(kind in RECURRENT for kind in kinds)
        full = len(kinds) - linear
        if one_layer:
            full, linear = min(full, 1), min(linear, 1)
        in_float32 = emulated and not fused_layers
        # chosen inputs, their outputs, these weighted and in the order of the tokens; gate, up and their product
        experts = 0
        for top_k, width in _expert_shapes(config):
            own = top_k * ((2 if fused_layers else 4) * hidden + 3 * width) * b
            experts = max(experts, own, top_k * hidden * (3 * b + 4 * float32) if in_float32 else 0)
        # queries with their gates, normalized in float32 and rotated, and what comes out of attention
        attention = heads * head * (8 * b + 3 * float32)
        delta, recurrent, conv = _recurrent_shape(config, b, fused_delta)
        stream = 4 * hidden * b + (4 * hidden * float32 if in_float32 else 0)
        return cls(
            kv_token=full * kv_heads * (key_head + value_head) * b,
            recurrent_row=linear * recurrent * float32,
            conv_row=linear * conv * b,
            pass_token=stream + max(experts, attention, delta),
            # without a mask keys and values exist twice while the pass is joined to earlier tokens
            attended_token=(2 if unmasked else heads // kv_heads + 1) * kv_heads * (key_head + value_head) * b,
            mask_entry=0 if unmasked else 1 + b,
            step_row=STEP_COPIES_BYTES * config.vocab_size,
            logits_tile=TILE_COPIES * TILE_ROWS * float32 * config.vocab_size,
            result_token=2 * hidden * b,
        )

    def scoring(self, tokens: int) -> int:
        """A batch of that many tokens, with prefixes before its rows."""
        return tokens * (self.pass_token + self.result_token + ATTENDED_TOKENS * self.attended_token)

    def reading(self, rows: int, tokens: int, before: int) -> int:
        """A pass of `tokens` tokens per row, after `before` earlier tokens of the row."""
        total = before + tokens
        mask = rows * tokens * total * self.mask_entry if before else 0
        return rows * tokens * self.pass_token + rows * total * self.attended_token + mask

    def remembered(self, tokens: int) -> int:
        """The caches of all layers for a row of that many tokens."""
        return self.recurrent_row + self.conv_row + tokens * self.kv_token

    def row(self, prompt: int, budget: int) -> int:
        """The memory of a row while it is answered, and its share of a step."""
        states = STATE_COPIES * (self.recurrent_row + self.conv_row)
        columns = prompt + int(KEY_COPIES * COLUMNS_ROUNDED * (prompt + budget))
        return states + columns * self.kv_token + self.step_row


@dataclass(frozen=True)
class Room:
    """Bytes of a device, and those in use independent of the batches."""

    device: str
    """The display name."""
    placement: str
    """The place of the weights: one of `q36eval.checkpoints.placements`."""
    total: int
    """The limit for this process."""
    free: int
    """The free part of that, after the weights are loaded."""
    weights: int
    decoded: int = 0
    """Packed weights in decoded form while in use, or the largest layer if read by layers."""
    host: bool = False
    """Whether it is the machine's own memory, with the batches of a CPU."""

    @property
    def margin(self) -> int:
        """Reserve for fragmentation and for the device's own use."""
        return 0 if self.host else int(FRAGMENTATION * self.total) + CONTEXT_BYTES


@dataclass(frozen=True)
class MemoryPlan:
    """Limits of batches, and the use of memory."""

    costs: Costs
    room: Room
    batches: int
    """Bytes for batches: the remaining memory."""
    score_tokens: int
    """Tokens of a scoring batch, with its padding."""
    prompt_tokens: int
    """Tokens of the prompts that are read together, with their padding."""
    rows: int
    """Maximum of answers that are generated together."""
    cache_bytes: int | None = None
    """Maximum memory of rows while they are answered; None if only their number is limited."""
    short: bool = False
    """Limits are below those of an otherwise unused device."""
    unused: tuple[str, ...] = ()
    """Abilities that the model does not support and that are not used."""

    @property
    def worth_sharing(self) -> int:
        """Tokens that a prefix must save in scoring, to be computed separately."""
        return WORTH_SHARING if self.room.host else max(WORTH_SHARING, int(WORTH_SHARING_OF_BATCH * self.score_tokens))

    def rows_of(self, prompt: int, budget: int) -> int:
        """The number of rows of such a prompt and answer, in tokens, that are generated together."""
        if self.cache_bytes is None:
            return self.rows
        fitting = self.cache_bytes // self.costs.row(prompt, budget)
        return self.rows if fitting >= self.rows else next((rows for rows in ROWS if rows <= fitting), 1)

    def answering_bytes(self, rows: int, prompt: int, budget: int) -> int:
        """Memory reserved for answers while that many prompts are read: for several rows the maximum, since memory for
        steps is as large as the largest batch needed; for one row its own, for which the other is released."""
        if self.cache_bytes is None:
            return 0
        return self.cache_bytes if rows > 1 else self.costs.row(prompt, budget)

    def chunk(self, rows: int, width: int, halvings: int = 0, held: int = 0) -> int:
        """Tokens of each of `rows` rows of `width` tokens that go through the model at a time.

        `width` if one pass takes them all; else a power of two of Gated DeltaNet chunks that leaves room for the rows'
        caches, or for the `held` bytes if that is more. If none does, the pass has as many tokens as the smallest
        batch: the weights are read for each, and there is a margin. `halvings` counts earlier attempts that ran out of
        memory.
        """
        costs = self.costs
        kept = max(held, rows * costs.remembered(width))

        def fits(tokens: int) -> bool:
            within = self.room.host or tokens == CHUNK_TOKENS or rows * tokens <= PASS_TOKENS
            tried = not self.room.host and rows * tokens <= LADDER[-1]
            return within and (tried or costs.reading(rows, tokens, width - tokens) + kept <= self.batches)

        if halvings == 0 and fits(width):
            return width
        tokens = CHUNK_TOKENS
        while 2 * tokens < width and fits(2 * tokens):
            tokens *= 2
        return max(CHUNK_TOKENS, tokens >> halvings)

    def lacking(self, width: int) -> tuple[int, int] | None:
        """The memory of a row of `width` tokens in the smallest passes, and a GPU's memory for it, if that is less.

        Such a row would run for minutes and then fail. The whole device counts, as in the limits, because others may
        release memory. Without a margin: a row that nearly fits is tried.
        """
        room, passed = self.room, min(width, CHUNK_TOKENS)
        needed = self.costs.remembered(width) + self.costs.reading(1, passed, width - passed)
        there = max(0, room.total - room.weights - room.decoded)
        return None if room.host or needed <= there else (needed, there)


def plan_memory(costs: Costs, room: Room, rows: int | None = None) -> MemoryPlan:
    """The largest batches that fit; `rows` is a person's maximum of answers generated together."""
    most = rows or max(ROWS)
    if room.host:
        attended = 0 if costs.recurrent_row else TYPICAL_TOKENS * costs.kv_token
        remembering = ANSWERED_BYTES // max(1, attended)
        fitting = next((n for n in ROWS if n <= min(remembering, GENERATE_BATCH_ROWS)), 1)
        return _of_cpu(costs, room, rows or fitting)
    alone = rounded_down(room.total - room.weights - room.decoded - room.margin)
    planned = _planned(costs, room, alone, most)
    if room.free - room.decoded >= alone:
        return planned
    now = _planned(costs, room, rounded_down(room.free - room.decoded - room.margin), most)
    limits = (planned.score_tokens, planned.prompt_tokens, planned.rows)
    return replace(now, short=(now.score_tokens, now.prompt_tokens, now.rows) != limits)


def _of_cpu(costs: Costs, room: Room, rows: int) -> MemoryPlan:
    batches = rounded_down((room.free - room.decoded) // 2)
    # prompts that fill a pass have this many tokens at the maximum of rows
    remembered = rows * costs.row(GENERATE_BATCH_TOKENS // rows, TYPICAL_TOKENS // 4)
    needed = max(costs.scoring(CPU_SCORE_BATCH_TOKENS), costs.reading(1, GENERATE_BATCH_TOKENS, 0) + remembered)
    if needed <= room.free - room.decoded:
        return MemoryPlan(costs, room, batches, CPU_SCORE_BATCH_TOKENS, GENERATE_BATCH_TOKENS, rows)
    planned = _planned(costs, room, batches, rows)
    return replace(planned, score_tokens=min(planned.score_tokens, CPU_SCORE_BATCH_TOKENS), short=True)


def _planned(costs: Costs, room: Room, batches: int, most_rows: int) -> MemoryPlan:
    """The largest limits for `batches` bytes, and the smallest of all if none fit."""
    reading = int(READING_SHARE * batches)
    score_tokens = next((tokens for tokens in LADDER if costs.scoring(tokens) <= batches), LADDER[-1])
    prompt_tokens = next((tokens for tokens in LADDER if costs.reading(1, tokens, 0) <= reading), LADDER[-1])
    plan = MemoryPlan(costs, room, batches, score_tokens, prompt_tokens, most_rows, cache_bytes=batches - reading)
    half = TYPICAL_TOKENS // 2
    return replace(plan, rows=plan.rows_of(half, half))


def rounded_down(size: int) -> int:
    """Rounded down to one of four steps between powers of two; never negative."""
    if size < 4:
        return max(0, size)
    step = 1 << (size.bit_length() - 3)
    return size - size % step
