"""Options in, exit status out."""

from __future__ import annotations

import functools
import importlib
import logging
import os
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from nccl_forensics import __version__
from nccl_forensics.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import tzinfo

    from nccl_forensics.model import InputRow
    from nccl_forensics.outputs import Outputs, Wanted
    from nccl_forensics.show.redact.redactor import Redactor
    from nccl_forensics.when.window import Window

NOTHING_TO_READ, WRONG_USAGE = 3, 2
STDOUT = Path("-")
STATUS = {"identified": 10, "suspected": 11, "undetermined": 12}
"""Exit status with --exit-code."""


def _fail(message: str, status: int) -> NoReturn:
    click.echo(f"nccl-forensics: {message}", err=True)
    sys.exit(status)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="nccl-forensics")
def main() -> None:
    """Find out which rank, host or GPU made a distributed training job time out.

    Give it whatever the customer sent: folders, archives, kernel logs, nvidia-bug-report files, job logs of any number
    of ranks, Flight Recorder dumps. It runs offline, needs no GPU, changes nothing, and writes one HTML page for the
    ticket. The first thing to try:

        nccl-forensics demo
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What `analyze` and `inspect` share."""

    timezone: str | None = None
    year: int | None = None
    hosts: Path | None = None
    good_run: tuple[str, ...] = ()
    workers: int = 1
    limits: tuple[tuple[str, int], ...] = ()
    quiet: bool = False
    verbose: bool = False
    no_progress: bool = False


def _common(function: Any) -> Any:
    """The options of `Common`, given to the command as one `common`."""

    @functools.wraps(function)
    def command(**given: Any) -> Any:
        limits = tuple((n, v) for n in LIMITS if (v := given.pop(f"max_{n}")) is not None)
        names = ("timezone", "year", "hosts", "good_run", "workers", "quiet", "verbose", "no_progress")
        shared = {n: given.pop(n) for n in names}
        if shared["verbose"]:
            logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stderr)
        return function(**given, common=Common(**shared, limits=limits))

    options = [
        click.option(
            "--timezone", metavar="ZONE", help="Zone of stamps that write none, e.g. Europe/Copenhagen or +02:00."
        ),
        click.option(
            "--year", type=click.IntRange(1990, 2100), help="Year of the newest line in logs that write no year."
        ),
        click.option(
            "--hosts",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Who ran where, if no log tells: lines of `rank host [local-rank] [GPU index or PCI address]`.",
        ),
        click.option(
            "--good-run",
            multiple=True,
            type=click.Path(exists=True),
            metavar="PATH",
            help="Logs of a run of the same job that went well: what looks like an error there, too, is none here.",
        ),
        click.option(
            "--workers",
            type=click.IntRange(1, 64),
            default=min(4, os.cpu_count() or 1),
            show_default=True,
            help="Threads that share the files where there is much to read.",
        ),
        click.option("--quiet", is_flag=True, help="Print nothing but what was asked for."),
        click.option("--verbose", is_flag=True, help="Say on stderr what each step did, and how long it took."),
        click.option("--no-progress", is_flag=True, help="No progress line on the terminal."),
        *(
            click.option(f"--max-{n.replace('_', '-')}", f"max_{n}", type=click.IntRange(min=1), help=text)
            for n, text in LIMITS.items()
        ),
    ]
    made: Any = command
    for option in reversed(options):
        made = option(made)
    return made


LIMITS = {
    "members": "At most so many files, archive members included.",
    "total_bytes": "At most so many unpacked bytes in all.",
    "ratio": "At most so many unpacked bytes for each packed one.",
    "depth": "At most so many archives and compressions in one another.",
    "seconds": "At most so long for unpacking one file.",
}
UNTOLD = frozenset(
    {"output", "json_", "markdown", "events", "perfetto", "redaction_map", "lang", "exit_code", "each"}
    | {"workers", "quiet", "verbose", "no_progress"}
)
"""Options that change what is written where, and nothing of what is found."""


def _typed() -> str:
    """The command line, with all that decided what was found."""
    context = click.get_current_context()
    typed = ["nccl-forensics", str(context.info_name)]
    rest: list[str] = []
    for param in context.command.params:
        name = str(param.name)
        if context.get_parameter_source(name) is not click.core.ParameterSource.COMMANDLINE or name in UNTOLD:
            continue
        value = context.params[name]
        if isinstance(param, click.Argument):
            rest += value if isinstance(value, tuple) else [value]
        else:
            typed += (
                [param.opts[0]] if isinstance(param, click.Option) and param.is_flag else [param.opts[0], str(value)]
            )
    return shlex.join([*typed, *(["--"] if any(r.startswith("-") and r != "-" for r in rest) else []), *rest])


def _zone(timezone: str | None) -> tzinfo | None:
    if timezone is None:
        return None
    from nccl_forensics.when.zones import parse_zone

    try:
        return parse_zone(timezone)
    except InputError as err:
        click.echo(f"nccl-forensics: {err} Going on without it: stamps without a zone are read as UTC.", err=True)
        return None


def _progress(common: Common) -> Any:
    if common.quiet or common.verbose or common.no_progress or not sys.stderr.isatty():
        return None
    count = [0, 0]

    def show(path: str, size: int) -> None:
        count[0] += 1
        count[1] += size
        click.echo(f"\r\x1b[K{count[0]:,} files, {count[1] / 1e6:,.0f} MB  {path[-60:]}", nl=False, err=True)

    return show


def _analysis(paths: tuple[str, ...], common: Common, zone: tzinfo | None, window: Any = None) -> Any:
    from nccl_forensics import pipeline
    from nccl_forensics.intake.limits import Limits

    show = _progress(common)
    try:
        return pipeline.analyze(
            paths,
            stdin=sys.stdin.buffer if "-" in paths else None,
            zone=zone,
            year=common.year,
            hosts=common.hosts,
            good_run=common.good_run,
            limits=Limits(**dict(common.limits)),
            progress=show,
            workers=common.workers,
            window=window,
        )
    except InputError as err:
        of_option = common.hosts is not None and str(common.hosts) in str(err)
        raise _NoAnswer(str(err), WRONG_USAGE if of_option else NOTHING_TO_READ) from None
    finally:
        if show is not None:
            click.echo("\r\x1b[K", nl=False, err=True)


@main.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "-o",
    "--output",
    metavar="FILE|-",
    type=click.Path(path_type=Path),
    help="The HTML report [default: NAME.report.html here; '-': on stdout, instead of the summary].",
)
@click.option(
    "--json", "json_", metavar="FILE|-", help="The whole analysis as JSON ('-': on stdout, instead of the summary)."
)
@click.option("--markdown", metavar="FILE|-", help="The ticket summary as Markdown.")
@click.option(
    "--events", metavar="FILE", type=click.Path(path_type=Path), help="The merged timeline as .csv, .jsonl or .parquet."
)
@click.option(
    "--perfetto",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The incidents as a trace for ui.perfetto.dev: hosts, ranks, stalls, who waits for whom.",
)
@click.option(
    "--since",
    metavar="TIME",
    help="Leave out what was logged earlier: 2026-03-10T21:17:09Z, '2026-03-10 21:17' (in --timezone or UTC), 21:17.",
)
@click.option("--until", metavar="TIME", help="Leave out what was logged later.")
@click.option(
    "--redact",
    is_flag=True,
    help="Stable aliases for hosts, addresses, users, paths, names and secrets in every output.",
)
@click.option(
    "--redaction-map",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Where the private list of aliases and originals goes; one that is there is used and extended.",
)
@click.option(
    "--lang",
    type=click.Choice(("en", "da", "de")),
    default="en",
    show_default=True,
    help="Language of the report's own words and actions; log text and JSON stay as they are.",
)
@click.option(
    "--each",
    is_flag=True,
    help="What lies in the folders PATH are tickets, each analyzed alone. -o, --json, --markdown, --perfetto: folders.",
)
@click.option(
    "--exit-code", is_flag=True, help="Exit with 10 identified, 11 suspected, 12 undetermined, 0 no incident."
)
@_common
def analyze(paths: tuple[str, ...], output: Path | None, each: bool, common: Common, **wanted: Any) -> None:
    """Read a pile of logs and name the culprit.

    PATH is a folder, a file, an archive (tar, zip, gz, xz, zst, in one another), or - for stdin. The ticket summary
    (at most 12 lines) goes to stdout, the report to NAME.report.html in this folder.

    \b
    nccl-forensics analyze customer-bundle.tar.gz
    nccl-forensics analyze logs/ nvidia-bug-report.log.gz --timezone Europe/Berlin --json out.json
    nccl-forensics analyze --each tickets/ -o reports/

    Exit status: 0 the analysis is written (also when nothing failed or nothing could be told), 1 a fault of ours,
    2 wrong usage, 3 no readable input.
    """
    from nccl_forensics.outputs import Wanted

    (_run_each if each else _run)(paths, common, output, Wanted(**wanted))


def _run(paths: tuple[str, ...], common: Common, output: Path | None, wanted: Wanted) -> None:
    from nccl_forensics.outputs import Outputs

    name = "redacted" if wanted.redact else _name(paths)
    outputs = Outputs(
        page=output if output is not None else Path(f"{name}.report.html"),
        page_is_given=output is not None,
        wanted=wanted,
    )
    inputs = (*paths, *([str(common.hosts)] if common.hosts is not None else ()))
    try:
        done = _one(paths, common, outputs, _prepared(outputs, inputs, common))
    except _NoAnswer as err:
        _fail(str(err), err.status)
    if not common.quiet:
        if STDOUT not in outputs.on_stdout:
            click.echo(done.summary)
        if done.page is not None:
            click.echo(f"Report: {done.page}", err=True)
    if wanted.exit_code:
        sys.exit(done.status)


def _run_each(paths: tuple[str, ...], common: Common, output: Path | None, wanted: Wanted) -> None:
    """Each entry of the folders by itself, one line for each; what can't be analyzed has its line, too."""
    from nccl_forensics import tickets

    inputs = (*paths, *([str(common.hosts)] if common.hosts is not None else ()))
    ends: list[int] = []
    try:
        found = tickets.found(paths, wanted, output)
        given = _prepared(found[0].outputs, inputs, common)
    except InputError as err:
        _fail(str(err), WRONG_USAGE)
    except _NoAnswer as err:
        _fail(str(err), err.status)
    for ticket in found:
        try:
            if ticket.refused is not None:
                raise _NoAnswer(ticket.refused, NOTHING_TO_READ)
            done = _one((str(ticket.path),), common, ticket.outputs, given)
            says, status = done.heading, done.status
        except _NoAnswer as err:
            says, status = f"not analyzed: {err}", err.status
        except Exception as err:  # one pile must not cost the others theirs
            says, status = f"not analyzed: a fault of ours ({type(err).__name__}). Analyze it alone and report it.", 1
        ends.append(status)
        if not common.quiet:
            click.echo(f"{ticket.name}: {says}")
    if not common.quiet:
        click.echo(f"Reports: {found[0].outputs.page.parent}", err=True)
    sys.exit(_end_of_all(ends, wanted.exit_code))


def _end_of_all(ends: Sequence[int], exit_code: bool) -> int:
    """0 if one was analyzed, else why not; 1 after a fault of ours. `exit_code`: the surest verdict's status."""
    if 1 in ends:
        return 1
    analyzed = [e for e in ends if e in (0, *STATUS.values())]
    if not analyzed:
        return min(ends)
    return min((e for e in analyzed if e), default=0) if exit_code else 0


class _NoAnswer(Exception):
    """This pile has none: the message says why, `status` is how the command ends if it is the only one."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """What holds for every pile of one command."""

    inputs: tuple[str, ...]
    zone: tzinfo | None
    window: Window | None
    hidden: Redactor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    """What became of one pile."""

    summary: str
    """The ticket."""
    heading: str
    page: str | None
    """Where the page is, as it may be shown; None: on stdout."""
    status: int
    """With --exit-code."""


def _prepared(outputs: Outputs, inputs: tuple[str, ...], common: Common) -> _Prepared:
    """What can be said before anything is read."""
    from nccl_forensics.outputs import check, redactor
    from nccl_forensics.when import window

    wanted = outputs.wanted
    try:
        check(outputs, inputs)
        zone = _zone(common.timezone)
        limits = window.window(wanted.since, wanted.until, zone)
        return _Prepared(inputs=inputs, zone=zone, window=limits, hidden=redactor(wanted))
    except InputError as err:
        raise _NoAnswer(str(err), WRONG_USAGE) from None


def _one(paths: tuple[str, ...], common: Common, outputs: Outputs, given: _Prepared) -> _Done:
    """One pile, from its paths to what is written of it."""
    from nccl_forensics.analysis import fingerprints
    from nccl_forensics.outputs import NotRedacted, write
    from nccl_forensics.show import document, ticket

    hidden, wanted = given.hidden, outputs.wanted
    analysis = _analysis(
        paths, common if hidden is None else replace(common, no_progress=True), given.zone, given.window
    )
    if not any(map(_was_read, analysis.rows)):
        raise _NoAnswer(_nothing_could_be_read(analysis.rows, hidden), NOTHING_TO_READ)
    analysis = fingerprints(analysis)
    doc = document.build(analysis, command=_typed(), timezone=common.timezone)
    rows = [document.event(e) for e in analysis.events] if wanted.events is not None or hidden is not None else []
    try:
        if hidden is not None:
            doc, rows = hidden.document(doc, rows)
            if not outputs.page_is_given:
                outputs = replace(outputs, page=Path(f"redacted-{hidden.fingerprint(doc)}.report.html"))
        summary, printed = write(outputs, given.inputs, doc, rows, hidden)
    except InputError as err:
        raise _NoAnswer(str(err if hidden is None else hidden.cover(str(err))), WRONG_USAGE) from None
    except NotRedacted as err:
        raise _NoAnswer(str(err), 1) from None
    for page in printed:
        click.echo(page, nl=not page.endswith("\n"))
    shown = None if outputs.page == STDOUT else str(outputs.page)
    if shown is not None and hidden is not None and outputs.page_is_given:
        shown = hidden.cover_path(shown)
    best = max(analysis.incidents, key=lambda i: i.verdict.confidence, default=None)
    return _Done(
        summary=summary,
        heading=ticket.in_short(doc, wanted.lang),
        page=shown,
        status=STATUS[best.verdict.status] if best is not None else 0,
    )


def _nothing_could_be_read(rows: Sequence[InputRow], hidden: Redactor | None) -> str:
    unread: Any = [{"path": r.path, "status": r.status, "reason": r.reason} for r in rows[:20]]
    for row in unread if hidden is None else hidden.redacted(unread):
        click.echo(f"  {row['path']}: {row['status']}: {row['reason']}", err=True)
    return "none of these files could be read as a log, dump or report. `nccl-forensics inspect` lists them all."


def _was_read(row: InputRow) -> bool:
    """Was it a log, a dump or a report, or at least a text, of which can be said that nothing in it was recognised?"""
    from nccl_forensics.lines.read import NOT_RECOGNISED

    return row.status in ("read", "partial") or row.reason == NOT_RECOGNISED


def _name(paths: tuple[str, ...]) -> str:
    from nccl_forensics.tickets import bare

    return "stdin" if paths[0] == "-" else bare(Path(paths[0]).resolve().name)


@main.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--json", "json_", metavar="FILE|-", help="The list as JSON.")
@_common
def inspect(paths: tuple[str, ...], json_: str | None, common: Common) -> None:
    """Say what is in a pile: each file, what it is, whose, from when to when, and what is missing.

    Use it before `analyze` when you want to know whether the customer sent enough.
    """
    import json

    from nccl_forensics.show import document, export, inventory, printed

    if json_ not in (None, "-"):
        try:
            export.check(Path(json_), paths)
        except InputError as err:
            _fail(str(err), WRONG_USAGE)
    try:
        analysis = _analysis(paths, common, _zone(common.timezone))
    except _NoAnswer as err:
        _fail(str(err), err.status)
    doc = document.build(analysis) | inventory.survey(analysis)
    if json_ is not None:
        names = ("schema", "tool", "inputs", "hosts", "clocks", "problems", "alarms", "files", "coverage", "missing")
        kept = {k: doc[k] for k in names if k in doc}
        text = json.dumps(kept, ensure_ascii=False, indent=1) + "\n"
        if json_ == "-":
            click.echo(text, nl=False)
            return
        try:
            export.write(Path(json_), text)
        except InputError as err:
            _fail(str(err), WRONG_USAGE)
    if not common.quiet:
        click.echo(printed.text(doc))
    if not doc["inputs"]:
        _fail("there is nothing in there.", NOTHING_TO_READ)


@main.command()
@click.argument("number", type=int)
@click.option("--json", "as_json", is_flag=True, help="The catalogue's entry as JSON.")
def xid(number: int, as_json: bool) -> None:
    """Explain an Xid number: what it means, what causes it, what to do."""
    import json

    from nccl_forensics import catalog
    from nccl_forensics.show import printed

    entry = next((e for e in catalog.load("xid")["xid"] if e["number"] == number), None)
    if entry is None:
        _fail(f"Xid {number} is not in the catalogue ({catalog.load('xid')['meta']['made']}).", WRONG_USAGE)
    click.echo(json.dumps(entry, ensure_ascii=False, indent=1) if as_json else printed.xid(entry))


@main.command("collect-script")
def collect_script() -> None:
    """Print the shell script that gathers a node's files for `analyze`: nccl-forensics collect-script > collect.sh

    It runs on the customer's nodes with any POSIX shell, as root or not, changes nothing there, gives up on tools that
    hang, and leaves one tar.gz with a list of what it could not get.
    """
    from importlib.resources import files

    click.echo(files("nccl_forensics.templates").joinpath("collect.sh").read_text(encoding="utf-8"), nl=False)


@main.command()
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="The HTML report [default: riser-xid79.report.html here]."
)
@click.option("--list", "list_", is_flag=True, help="List the bundled incidents.")
@click.argument("name", required=False, default="riser-xid79")
def demo(output: Path | None, list_: bool, name: str) -> None:
    """Analyze a bundled incident: an eight-card workstation whose GPU fell off the bus."""
    from importlib.resources import as_file, files

    folder = files("nccl_forensics.samples")
    names = sorted(p.name for p in folder.iterdir() if p.joinpath("expected.json").is_file())
    if list_:
        for one in names:
            story = folder.joinpath(one).joinpath("README.txt")
            first = story.read_text(encoding="utf-8").splitlines()[0] if story.is_file() else ""
            click.echo(f"{one:24}{first}")
        return
    if name not in names:
        _fail(f"there is no sample {name!r}; there are {', '.join(names)}.", WRONG_USAGE)
    from nccl_forensics.outputs import Wanted

    with as_file(folder.joinpath(name)) as path:
        samples = importlib.import_module("nccl_forensics.samples")
        inputs, options = samples.bundle(path)
        common = Common(timezone=options.get("timezone"), year=options.get("year"))
        _run(inputs, common, output if output is not None else Path(f"{name}.report.html"), Wanted())
