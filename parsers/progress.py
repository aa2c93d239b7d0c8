"""The application's own pulse: steps, progress bars, stages, checkpoints. Always context: it shows who lived when.

Written by Megatron, torchtitan, HF Trainer, DeepSpeed, Lightning, tqdm, mm*/detectron and home-made loops. Time: that
of the line's prefix; bars and dict lines have none. Bars are redrawn with '\\r': the last one is the last pulse.
Examples:

 [2026-05-01 10:00:00] iteration 1200/ 5000 | consumed samples: 1228800 | lm loss: ...
Running tokenizer on dataset:  47%|####      | 3169000/6811963 [30:11<38:27, 1578.58 examples/s]
{'loss': 0.42, 'grad_norm': 1.1, 'learning_rate': 1e-05, 'epoch': 0.3}
[rank0]: 2026-08-02 21:14:41 | INFO | Saving checkpoint to /lustre/run/epoch_0_step_69999 (async)

Such lines can be every line of a log, so the pipeline hands over only the first and last few hundred.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_forensics.lines.line import Line
from nccl_forensics.lines.plugins import parser
from nccl_forensics.model import Detail, Event

from ._lines import number

LONGEST = 1000
"""Characters looked at: step counters stand at the head of a line, bars at its end."""
BEFORE_BAR = 120
"""Characters in front of a bar that tell what it is of."""

LITERALS = (
    "it/s",
    "s/it",
    "examples/s",
    "ba/s]",
    "B/s]",
    "step ",
    "step:",
    "step=",
    "Step ",
    "Step:",
    "step'",
    'step"',
    "steps ",
    "iter ",
    "iteration",
    "Iteration",
    "Epoch",
    "epoch",
    "loss",
    "aving ",
    "aved ",
    "wrote ",
    "heckpoint",
    "alidat",
    "valuat",
    "okeniz",
    "reprocess",
    "ompiling",
    "inaliz",
    "raining complete",
    "raining finished",
    "raining done",
    "stopped: `max_",
    "oading ",
    "xhausted",
    "ut of data",
    "o more data",
    "o more batches",
    "nd of data",
    "Max_MA ",
    "CPU Virtual Memory",
    "rss=",
    "rss:",
    "rss_",
)

BAR = re.compile(
    r"(?<!\d)(?P<percent>\d{1,3})%\|[^|\n]{0,200}\|\s{0,4}(?P<step>[\d.]{1,12})(?P<unit>[kMG])?/(?P<total>[\d.]{1,12})[kMG]?\s"
    r"\[(?P<elapsed>\d{1,4}(?::\d\d){1,3})<(?P<left>[\d:?, ]{1,20})"
)
STEP = re.compile(
    r"(?i)\b(?P<what>global_step|training step|train step|iteration|iter|step"
    r"|batch)['\"]?(?:/max_steps['\"]?)?\s{0,3}[:=#]?\s{0,6}['\"\[]?\s{0,6}(?P<step>\d{1,12})"
    r"(?:\s{0,3}(?:/|of)\s{0,3}(?P<total>\d{1,12}))?\b"
)
EPOCH_STEP = re.compile(
    r"Epoch(?:\(\w{1,12}\))?:? {0,3}\[\d{1,6}\](?:\[| +\[) ?(?P<step>\d{1,12})/(?P<total>\d{1,12})\]"
)
LOSS = re.compile(r"(?i)\bloss['\"]?\s{0,2}[:= ]\s{0,3}(?P<loss>-?\d{1,12}(?:\.\d{1,12})?(?:e[+-]?\d{1,3})?|nan|inf)\b")
NO_NUMBER = ("nan", "inf")
GPU_MEMORY = re.compile(
    r"(?i)(?<![\w.])(?:gpu[_ ]mem(?:ory)?|mem(?:ory)?|max[_ ]mem(?:ory)?|max[_ ]memory[_ ]allocated"
    r"|(?:max[_ ])?allocated|MA)(?:_?(?P<named>[MG]i?B)|\((?P<in>[MG]i?B)\))?['\"]?\s{0,3}[:= ]\s{0,3}"
    r"(?P<size>\d{1,9}(?:\.\d{1,6})?)(?!\d)\s?(?P<unit>[KMGT]i?B)?"
)
"""torchtitan `memory: 40.0GiB`, ms-swift `'memory(GiB)': 45.2`, DeepSpeed `MA 15.5 GB`, mmengine `memory: 12345` and
DETR `max mem: 12345` (both MB), Megatron `memory (MB) | allocated: 1234.5`."""
HOST_MEMORY = re.compile(
    r"(?i)(?<![\w.])(?:(?:host|cpu)[_ ](?:rss|mem(?:ory)?)|rss|CPU Virtual Memory:\s{1,3}used)"
    r"(?:_(?P<named>bytes|[KMG]i?B))?['\"]?\s{0,3}[:=]\s{0,3}(?P<size>\d{1,15}(?:\.\d{1,6})?)\s?(?P<unit>[KMGT]i?B)?"
)
STEP_TIME = re.compile(
    r"(?i)(?:per iteration \((?P<in>ms|s)\)|\b(?:step|iter(?:ation)?|batch)[_ ]?time(?:[_ ]?\(?(?P<named>ms|s)\)?)?"
    r"|(?<![\w.])time)['\"]?\s{0,3}[:=]\s{0,3}(?P<time>\d{1,9}(?:\.\d{1,9})?)(?![\d:.])\s?(?P<unit>ms\b|s\b)?"
)
"""Megatron `elapsed time per iteration (ms): 812.3`, lit-gpt `time: 6235.95ms`, mmengine and DETR `time: 0.79` (s)."""
RATE = re.compile(r"(?<![\d.])(?P<rate>\d{1,6}(?:\.\d{1,6})?)(?P<unit>it/s|s/it)")
SEQUENCE = re.compile(
    r"(?i)(?<![\w.])(?:(?:max[_ ])?seq(?:uence)?[_ ]?len(?:gth)?|num[_ ]?tokens|tokens[_ ]in[_ ]batch)['\"]?"
    r"\s{0,3}[:=]\s{0,3}(?P<length>\d{1,9})\b"
)
SIZES = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
SAVING = re.compile(
    r"(?i)^(?:.{0,120}?[\s|:\]])?(?:saving|writing|start(?:ing|ed)? (?:to )?sav(?:e"
    r"|ing))\b[^\n]{0,60}?(?:checkpoint|model|state|\.pth?\b|\.ckpt|\.safetensors|weights|(?P<bare>/\S{1,300}))"
)
SAVED = re.compile(
    r"(?i)(?:\bsuccessfully saved (?:a )?checkpoint|\bsaved (?:the )?(?:latest |new )?(?:checkpoint|model|state"
    r"|weights|/\S)|\bwrote (?:checkpoint|/\S)"
    r"|\bcheckpoint\b[^\n]{0,200}?\b(?:finished|saved|written|complete[d]?)\b|\bfinished (?:saving|writing))"
)
SAVING_WORDS = ("sav", "writ", "wrote", "checkpoint")
"""In every line that tells of a save, lower case."""
PATH = re.compile(r"(?<![\w.])(?P<path>(?:/|s3://|gs://)[\w.@%+=~/-]{2,300})")
NUMBERED = re.compile(r"(?i)(?:step|iter(?:ation)?|epoch|_|-)[_= ]?(?P<step>\d{2,12})(?=\D|$)")
STAGES: tuple[tuple[str, tuple[str, ...], re.Pattern[str]], ...] = (
    (
        "finished",
        ("max_", "finali", "complete", "finish", "done", "train_runtime"),
        re.compile(
            r"(?i)`Trainer\.fit` stopped: `max_|\bfinali[sz]e done\b|\btraining (?:is )?(?:complete[d]?|finished"
            r"|done)\b"
            r"|\bfinished training\b|^done\.?$|\ball (?:steps|epochs) done\b|'train_runtime'"
        ),
    ),
    (
        "validation",
        ("valid", "eval", "sanity"),
        re.compile(
            r"(?i)\b(?:running|start(?:ing|ed)?|begin(?:ning)?|\*{3,} running) (?:\w{1,20} )?(?:validation"
            r"|evaluation|eval)\b|\bvalidating\b|\bvalidation\b.{0,40}(?:start|running)|\bsanity checking\b"
        ),
    ),
    (
        "out of data",
        ("exhausted", "out of data", "no more", "end of data"),
        re.compile(
            r"(?i)\b(?:data(?:set|loader| loader| iterator)?"
            r"|(?:train(?:ing)?[ _])?(?:iterator|loader|shards?|samples|batches)) (?:is |was |are )?exhausted\b"
            r"|\bexhausted (?:its|the|all) (?:data|dataset|shards?|samples|batches)\b"
            r"|\b(?:ran|is|are) out of data\b|\bno more (?:data|batches|samples)\b|\bend of data(?:set)? reached\b"
        ),
    ),
    ("tokenizing", ("tokeniz",), re.compile(r"(?i)\b(?:running tokenizer|tokeniz(?:ing|e)\b)")),
    ("preprocessing", ("processing",), re.compile(r"(?i)\bpre-?processing\b")),
    ("compiling", ("compil",), re.compile(r"(?i)\bcompiling\b|\btorch\.compile\b.{0,60}(?:start|warm)")),
    (
        "loading checkpoint",
        ("load", "resum", "restor"),
        re.compile(
            r"(?i)\b(?:loading|resuming|restoring)\b[^\n]{0,60}?(?:checkpoint|\bfrom\b)|\bload(?:ed)? checkpoint\b"
        ),
    ),
)
"""Stage, words of which one stands in every line that tells of it (lower case), and how it is told."""
KINDS: tuple[tuple[str, str], ...] = (
    ("tokeniz", "tokenizing"),
    ("preprocess", "preprocessing"),
    ("sanity", "validation"),
    ("valid", "validation"),
    ("eval", "validation"),
    ("sav", "saving checkpoint"),
    ("checkpoint", "saving checkpoint"),
    ("download", "downloading"),
    ("load", "loading"),
    ("map", "preprocessing"),
    ("split", "preprocessing"),
)
"""Words in front of a progress bar and the stage they mean."""
ELSEWHERE = re.compile(
    r"ProcessGroup\w{0,20}\.cpp|NCCL (?:WARN|INFO)|Traceback \(most|WorkNCCL\(|^\s*File \"|^\s*frame #|TCPStore"
    r"|socket\.cpp"
    r"|^(?:\w{1,40}\.){0,6}\w{1,60}(?:Error|Exception)\b|\[Errno |elastic/|PYTORCH_CUDA_ALLOC_CONF"
)
"""Lines of the libraries, which have parsers of their own."""


def seconds(text: str) -> float:
    """'30:11' → 1811.0; '1:02:11' → 3731.0."""
    total = 0
    for part in text.split(":"):
        total = total * 60 + int(part)
    return float(total)


def _bytes(found: re.Match[str] | None, unit: str | None) -> int | None:
    """The size in bytes, its unit written behind it, in its name, or else `unit`; None if none of them tells."""
    if found is None:
        return None
    named = found.groupdict()
    told = named.get("unit") or named.get("named") or named.get("in") or unit
    return int(float(found["size"]) * SIZES[told[0].lower()]) if told else None


def _holds(text: str, words: tuple[str, ...]) -> bool:
    """Whether one of them stands in it. A loop, for every line asks ten times and a generator costs twice as much."""
    for word in words:  # noqa: SIM110
        if word in text:
            return True
    return False


def _gpu_used_bytes(text: str, lowered: str) -> int | None:
    if "mem" not in lowered and "alloc" not in lowered and "MA " not in text:
        return None
    return _bytes(GPU_MEMORY.search(text), "G" if "(GB)" in text or "(GiB)" in text else "M")


def _host_rss_bytes(text: str, lowered: str) -> int | None:
    if "rss" not in lowered and "cpu" not in lowered and "host" not in lowered:
        return None
    return _bytes(HOST_MEMORY.search(text), None)


def _ms_by_rate(text: str) -> float | None:
    """From the newest rate of a bar."""
    rates = RATE.findall(text) if "it/s" in text or "s/it" in text else []
    if not rates:
        return None
    rate, unit = float(rates[-1][0]), rates[-1][1]
    if rate <= 0:
        return None
    return round(1000 / rate if unit == "it/s" else rate * 1000, 3)


def _step_ms(text: str, lowered: str) -> float | None:
    """How long a step took: as it is written, or else by its rate."""
    if "time" in lowered and (time := STEP_TIME.search(text)):
        unit = time["unit"] or time["named"] or time["in"] or "s"
        return float(time["time"]) * (1 if unit.lower() == "ms" else 1000)
    return _ms_by_rate(text)


def _sequence(text: str, lowered: str) -> int | None:
    if "seq" not in lowered and "tokens" not in lowered:
        return None
    length = SEQUENCE.search(text)
    return int(length["length"]) if length else None


def _measures(text: str, lowered: str) -> dict[str, Detail]:
    """What a line of progress says of time, memory and batch; only what it says.

    `step_ms`, `gpu_used_bytes` and `host_rss_bytes` (units of 1024), `sequence` (tokens).
    """
    found: dict[str, Detail] = {
        "gpu_used_bytes": _gpu_used_bytes(text, lowered),
        "host_rss_bytes": _host_rss_bytes(text, lowered),
        "step_ms": _step_ms(text, lowered),
        "sequence": _sequence(text, lowered),
    }
    return {k: v for k, v in found.items() if v is not None}


def _loss(text: str, lowered: str) -> str | None:
    """The loss as it is written, in lower case; None where there is none."""
    found = LOSS.search(text) if "loss" in lowered else None
    return found["loss"].lower() if found else None


def _finite(loss: str | None) -> float | None:
    return float(loss) if loss and loss not in NO_NUMBER else None


def _loss_says(loss: str | None) -> dict[str, Detail]:
    """'nan' or 'inf' as a detail of its own."""
    return {"loss_says": loss} if loss in NO_NUMBER else {}


def _stage_of_bar(words: str) -> str:
    """What goes on, by the words in front of a bar."""
    lowered = words.lower()
    return next((stage for part, stage in KINDS if part in lowered), "training step")


def _newest_bar(text: str) -> re.Match[str] | None:
    """Of several glued together the last one."""
    bar = None
    for bar in BAR.finditer(text) if "%|" in text else ():  # noqa: B007
        pass
    return bar


def _bar(line: Line, text: str, bar: re.Match[str]) -> Event:
    whole = bar["unit"] is None and bar["step"].isdigit()
    loss = _loss(text, text.lower())
    begins = max(0, bar.start() - BEFORE_BAR)
    measured = text[begins:]
    return line.event(
        "progress",
        role="context",
        details={
            "step": int(bar["step"]) if whole else None,
            "total": number(bar["total"]) if bar["total"].isdigit() else None,
            "percent": float(bar["percent"]),
            "what": _stage_of_bar(text[begins : bar.start()].rpartition("]")[2]),
            "loss": _finite(loss),
            "elapsed_s": seconds(bar["elapsed"]),
            **_loss_says(loss),
            **_measures(measured, measured.lower()),
        },
    )


def _checkpoint(line: Line, text: str, lowered: str) -> Event | None:
    """A save that begins or has ended. "Saving checkpoint … after 3 complete epochs" has only begun."""
    if not _holds(lowered, SAVING_WORDS):
        return None
    begun = SAVING.search(text) is not None
    if not begun and not SAVED.search(text):
        return None
    path = PATH.search(text)
    step = NUMBERED.search(path["path"] if path else text)
    return line.event(
        "checkpoint",
        role="context",
        details={
            "what": "start" if begun else "done",
            "path": path["path"] if path else None,
            "step": int(step["step"]) if step else None,
        },
    )


def _stage(line: Line, text: str, lowered: str) -> Event | None:
    """The first of `STAGES` that the line tells of."""
    for what, signs, pattern in STAGES:
        if _holds(lowered, signs) and pattern.search(text):
            return line.event(
                "progress",
                role="context",
                details={
                    "step": None,
                    "total": None,
                    "percent": None,
                    "what": what,
                    "loss": _finite(_loss(text, lowered)),
                },
            )
    return None


def _step(line: Line, text: str, lowered: str) -> Event | None:
    """A step by its number, a loss beside an epoch or in a printed dict, or what memory is in use."""
    step = EPOCH_STEP.search(text) or STEP.search(text)
    loss = _loss(text, lowered)
    measured = _measures(text, lowered)
    of_memory = "gpu_used_bytes" in measured or "host_rss_bytes" in measured
    of_training = loss is not None and ("epoch" in lowered or text.lstrip().startswith("{"))
    if not (step or of_memory or of_training):
        return None
    return line.event(
        "progress",
        role="context",
        details={
            "step": int(step["step"]) if step else None,
            "total": number(step["total"]) if step else None,
            "percent": None,
            "what": "training step" if step or loss else "memory",
            "loss": _finite(loss),
            **_loss_says(loss),
            **measured,
        },
    )


@parser(title="Progress of the application", literals=LITERALS)
def progress(line: Line) -> Iterator[Event]:
    raw = line.raw.decode("utf-8", "replace")
    text = raw if raw.startswith('{"') else line.text
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} {text[-LONGEST // 2 :]}"
    if (bar := _newest_bar(text)) is not None:
        yield _bar(line, text, bar)
        return
    if ELSEWHERE.search(text) or (raw != text and ELSEWHERE.search(raw[:LONGEST])):
        return
    lowered = text.lower()
    told = _checkpoint(line, text, lowered) or _stage(line, text, lowered) or _step(line, text, lowered)
    if told is not None:
        yield told
