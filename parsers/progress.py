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

from nccl_forensics.model import Event
from nccl_forensics.plugins import parser
from nccl_forensics.scan import Line

from ._lines import number

LONGEST = 1000
"""Characters looked at: step counters stand at the head of a line, bars at its end."""

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
EPOCH_STEP = re.compile(r"Epoch:? ?\[\d{1,6}\](?:\[| +\[) ?(?P<step>\d{1,12})/(?P<total>\d{1,12})\]")
LOSS = re.compile(r"(?i)\bloss['\"]?\s{0,2}[:= ]\s{0,3}(?P<loss>-?\d{1,12}(?:\.\d{1,12})?(?:e[+-]?\d{1,3})?|nan|inf)\b")
SAVING = re.compile(
    r"(?i)^(?:.{0,120}?[\s|:\]])?(?:saving|writing|start(?:ing|ed)? (?:to )?sav(?:e"
    r"|ing))\b[^\n]{0,60}?(?:checkpoint|model|state|\.pth?\b|\.ckpt|\.safetensors|weights|(?P<bare>/\S{1,300}))"
)
SAVED = re.compile(
    r"(?i)(?:\bsuccessfully saved (?:a )?checkpoint|\bsaved (?:the )?(?:latest |new )?(?:checkpoint|model|state"
    r"|weights|/\S)|\bwrote (?:checkpoint|/\S)"
    r"|\bcheckpoint\b[^\n]{0,200}?\b(?:finished|saved|written|complete[d]?)\b|\bfinished (?:saving|writing))"
)
PATH = re.compile(r"(?<![\w.])(?P<path>(?:/|s3://|gs://)[\w.@%+=~/-]{2,300})")
NUMBERED = re.compile(r"(?i)(?:step|iter(?:ation)?|epoch|_|-)[_= ]?(?P<step>\d{2,12})(?=\D|$)")
STAGES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "finished",
        re.compile(
            r"(?i)`Trainer\.fit` stopped: `max_|\bfinali[sz]e done\b|\btraining (?:is )?(?:complete[d]?|finished"
            r"|done)\b"
            r"|\bfinished training\b|^done\.?$|\ball (?:steps|epochs) done\b|'train_runtime'"
        ),
    ),
    (
        "validation",
        re.compile(
            r"(?i)\b(?:running|start(?:ing|ed)?|begin(?:ning)?|\*{3,} running) (?:\w{1,20} )?(?:validation"
            r"|evaluation|eval)\b|\bvalidating\b|\bvalidation\b.{0,40}(?:start|running)|\bsanity checking\b"
        ),
    ),
    ("tokenizing", re.compile(r"(?i)\b(?:running tokenizer|tokeniz(?:ing|e)\b)")),
    ("preprocessing", re.compile(r"(?i)\bpre-?processing\b")),
    ("compiling", re.compile(r"(?i)\bcompiling\b|\btorch\.compile\b.{0,60}(?:start|warm)")),
    (
        "loading checkpoint",
        re.compile(
            r"(?i)\b(?:loading|resuming|restoring)\b[^\n]{0,60}?(?:checkpoint|\bfrom\b)|\bload(?:ed)? checkpoint\b"
        ),
    ),
)
KINDS: tuple[tuple[str, str], ...] = (
    ("tokeniz", "tokenizing"),
    ("preprocess", "preprocessing"),
    ("valid", "validation"),
    ("eval", "validation"),
    ("sav", "saving checkpoint"),
    ("checkpoint", "saving checkpoint"),
    ("load", "loading"),
    ("download", "loading"),
    ("map", "preprocessing"),
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


def _stage(words: str | None) -> str:
    lowered = (words or "").lower()
    return next((stage for part, stage in KINDS if part in lowered), "training step")


@parser(title="Progress of the application", literals=LITERALS)
def progress(line: Line) -> Iterator[Event]:
    raw = line.raw.decode("utf-8", "replace")
    text = raw if raw.startswith('{"') else line.text
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} {text[-LONGEST // 2 :]}"
    bar = None
    for bar in BAR.finditer(text):  # noqa: B007 - of several glued together the last one counts
        pass
    if bar is None and (ELSEWHERE.search(text) or ELSEWHERE.search(raw[:LONGEST])):
        return
    loss = LOSS.search(text)
    lost = float(loss["loss"]) if loss and loss["loss"].lower() not in ("nan", "inf") else None
    if bar is not None:
        whole = bar["unit"] is None and bar["step"].isdigit()
        yield line.event(
            "progress",
            role="context",
            details={
                "step": int(bar["step"]) if whole else None,
                "total": number(bar["total"]) if bar["total"].isdigit() else None,
                "percent": float(bar["percent"]),
                "what": _stage(text[max(0, bar.start() - 120) : bar.start()].rpartition("]")[2]),
                "loss": lost,
                "elapsed_s": seconds(bar["elapsed"]),
            },
        )
        return
    saving = SAVING.search(text)
    done = None if saving else SAVED.search(text)  # "Saving checkpoint … after 3 complete epochs" has only begun
    if done or saving:
        path = PATH.search(text)
        step = NUMBERED.search(path["path"] if path else text)
        yield line.event(
            "checkpoint",
            role="context",
            details={
                "what": "done" if done else "start",
                "path": path["path"] if path else None,
                "step": int(step["step"]) if step else None,
            },
        )
        return
    for what, pattern in STAGES:
        if pattern.search(text):
            yield line.event(
                "progress",
                role="context",
                details={"step": None, "total": None, "percent": None, "what": what, "loss": lost},
            )
            return
    step = EPOCH_STEP.search(text) or STEP.search(text)
    if step or (loss and "epoch" in text.lower()) or (loss and text.lstrip().startswith("{")):
        total = step["total"] if step else None
        yield line.event(
            "progress",
            role="context",
            details={
                "step": int(step["step"]) if step else None,
                "total": number(total),
                "percent": None,
                "what": "training step",
                "loss": lost,
            },
        )
