"""The report in Danish and German: complete, compiled, and only its own words."""

from __future__ import annotations

import base64
import copy
import json
import pickle
import re
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import report_docs
from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_dir
from babel.messages.frontend import parse_keywords, parse_mapping_cfg
from babel.messages.mofile import read_mo
from babel.messages.pofile import read_po
from click.testing import CliRunner
from nccl_forensics.samples import bundle  # type: ignore[import-not-found]

from nccl_forensics import catalog, cli
from nccl_forensics.pipeline import analyze
from nccl_forensics.show import document
from nccl_forensics.show.page.words import clean
from nccl_forensics.show.report import html, markdown
from nccl_forensics.show.ticket import ticket
from nccl_forensics.text import language, phrases
from nccl_forensics.text.messages import Message, filled, numbered, say, say_many
from nccl_forensics.when.zones import parse_zone

HERE = Path(__file__).resolve().parent.parent
LOCALE = HERE / "nccl_forensics" / "text" / "locale"
SAMPLES = ("riser-xid79", "skipped-collective", "two-rails-psu")
OTHERS = ("da", "de")
PLACEHOLDER = re.compile(r"\{[a-z_]+\}|%\([a-z_]+\)s|<[^>]*>|`[^`]*`")


def _catalogue(lang: str, ending: str) -> Catalog:
    with (LOCALE / lang / "LC_MESSAGES" / f"messages.{ending}").open("rb") as file:
        return read_po(file, locale=lang) if ending == "po" else read_mo(file)


def _strings(lang: str, ending: str) -> dict[Any, Any]:
    rows = ((m.id, m.string) for m in _catalogue(lang, ending) if m.id)
    return {tuple(i) if isinstance(i, list) else i: tuple(s) if isinstance(s, list) else s for i, s in rows}


@cache
def _wanted() -> frozenset[Any]:
    """What the program would say in English."""
    with (HERE / "babel.cfg").open() as file:
        methods, options = parse_mapping_cfg(file)
    keywords = parse_keywords(("_", "N_", "say", "say_many:1,2", "gettext", "ngettext:1,2", "counted:1,2", "pair:1,2"))
    return frozenset(m[2] for m in extract_from_dir(str(HERE), methods, options, keywords))


def test_no_word_has_two_translations() -> None:
    """gettext keeps one entry for a word and for the pair that begins with it."""
    assert {pair[0] for pair in _wanted() if isinstance(pair, tuple)} & _wanted() == set()


def test_every_noun_that_the_page_counts_is_translated() -> None:
    """A noun that phrases.NOUNS does not have would be said in English in all languages."""
    templates = "".join(p.read_text(encoding="utf-8") for p in sorted((HERE / "templates").glob("*.j2")))
    code = "".join(p.read_text(encoding="utf-8") for p in sorted((HERE / "nccl_forensics" / "show").rglob("page/*.py")))
    used = set(re.findall(r'(?:plural\(|(?:more|below)\([^(),]*, )"([a-z A-Z]+)"[,)]', templates))
    used |= set(re.findall(r"(?:count_words|noun)\(.+?, [\"']([a-z A-Z]+)[\"']\)", code))
    assert {"GPU", "key event", "known rank", "suspect"} <= used
    assert used <= phrases.NOUNS.keys()


@cache
def _sample(name: str) -> dict[str, Any]:
    inputs, options = bundle(HERE / "samples" / name)
    zone = parse_zone(options["timezone"]) if "timezone" in options else None
    return document.build(analyze(inputs, zone=zone, year=options.get("year")))


@cache
def _page(name: str, lang: str) -> str:
    return html(_sample(name), lang)


def _embedded(page: str) -> str:
    found = re.search(r'<script type="application/(\w+)" id="analysis">(.*?)</script>', page, re.DOTALL)
    assert found
    return found[2] if found[1] == "json" else zlib.decompress(base64.b64decode(found[2])).decode()


@pytest.mark.parametrize("lang", OTHERS)
def test_every_message_is_translated_with_its_placeholders(lang: str) -> None:
    assert len(_wanted()) > 400
    there = _strings(lang, "po")
    assert set(there) == _wanted(), "run the two pybabel commands of CONTRIBUTING.md"
    assert not [m.id for m in _catalogue(lang, "po") if m.fuzzy and m.id]
    for message, translated in there.items():
        ones = (message,) if isinstance(message, str) else message
        others = (translated,) if isinstance(translated, str) else translated
        assert len(ones) == len(others)
        for one, other in zip(ones, others, strict=True):
            assert other.strip(), one
            assert sorted(PLACEHOLDER.findall(one)) == sorted(PLACEHOLDER.findall(other)), one
            assert other[:1] in (" ", ",") if one[:1] == " " else other[:1] != " ", one


@pytest.mark.parametrize("lang", OTHERS)
def test_what_is_read_at_run_time_is_what_was_translated(lang: str) -> None:
    assert _strings(lang, "mo") == _strings(lang, "po")


def test_a_checkout_without_built_words_says_how_to_build_them(
    here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(language, "files", lambda _: tmp_path)
    monkeypatch.setattr(language, "_translations", language._translations.__wrapped__)
    found = CliRunner().invoke(cli.main, ["analyze", str(HERE / "samples" / SAMPLES[0]), "--lang", "da"])
    assert (found.exit_code, "pip install -e ." in found.output) == (2, True)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("lang", OTHERS)
def test_columns_that_the_search_names_are_called_the_same(lang: str) -> None:
    assert {w: _strings(lang, "po")[w] for w in ("Host", "Rank")} == {"Host": "Host", "Rank": "Rank"}
    assert '<th scope="col" class="num">GPU</th>' in _page("riser-xid79", lang)


@pytest.mark.parametrize("lang", OTHERS)
@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_speaks_the_language(name: str, lang: str) -> None:
    english, page, words = _page(name, "en"), _page(name, lang), _strings(lang, "po")
    assert f'<html lang="{lang}">' in page
    assert '<html lang="en">' in english
    for heading in ("Do this first", "Not to blame", "Timeline", "Inputs", "Events", "Evidence, from cause to abort"):
        assert f">{heading}</h" in english
        assert f">{heading}</h" not in page
        assert f">{words[heading]}</h" in page
    (incident,) = _sample(name)["incidents"]
    action = incident["verdict"]["actions"][0]
    assert clean(action["do"])[:40] in ticket(_sample(name))
    with language.speaking(lang):
        said = language.said(action["do"])
        assert language.said(action["because"]) != action["because"]
    assert said != action["do"]
    assert "{" not in said
    text = ticket(_sample(name), lang)
    assert said[:40] in text
    assert f"**{words['Do first']}:**" in markdown(_sample(name), lang)
    assert words[catalog.load("causes")[incident["verdict"]["cause"]]["title"]] in text


@pytest.mark.parametrize("name", SAMPLES)
def test_the_data_on_the_page_is_english_in_all_languages(name: str) -> None:
    data = {lang: _embedded(_page(name, lang)) for lang in language.LANGUAGES}
    assert len(set(data.values())) == 1
    assert json.loads(data["de"])["incidents"]


@pytest.mark.slow
@pytest.mark.parametrize("lang", OTHERS)
@pytest.mark.parametrize("name", sorted(report_docs.ALL))
def test_any_document_can_be_said(name: str, lang: str) -> None:
    doc = report_docs.ALL[name]()
    before = html(doc)
    page = html(doc, lang)
    assert page != before
    assert html(doc) == before
    assert len(ticket(doc, lang).splitlines()) <= 12
    assert set(re.findall(r'\bid="([^"]+)"', page)) == set(re.findall(r'\bid="([^"]+)"', before))


@pytest.mark.parametrize("lang", OTHERS)
def test_every_action_of_the_catalogue_is_said_with_its_values(lang: str) -> None:
    who, words = phrases.ranks([0, 1, 2, 5]), _strings(lang, "po")
    values = {"host": "node-1", "gpu": "0000:4b:00.0", "at_gpu": "", "index": "3", "rank": "0–2 and 5", "who": who}
    with language.speaking(lang):
        local = {name: language.said(value) for name, value in values.items()}
        for entry in catalog.load("actions")["action"]:
            for key in ("do", "because"):
                assert language.said(Message(entry[key], values)) == filled(words[entry[key]], local)
    assert local["who"] != who


def test_what_comes_from_a_log_stays_as_it_is() -> None:
    """A value is no template and no word of ours, whatever it holds."""
    with language.speaking("de"):
        assert language.said(say(" on {host}", host="a process")) == " auf a process"
        assert language.said(say(" on {host}", host="{why} {host}")) == " auf {why} {host}"
        assert language.said("a process") == "a process"
    assert language.current() == "en"


def test_a_message_is_its_english_text() -> None:
    made = say("rank {numbers}", numbers=3)
    whole = made.capitalize() + " " + say_many("{ranks} waits", "{ranks} wait", 2, ranks="x") + "."
    assert (made, whole, json.dumps(whole)) == ("rank 3", "Rank 3 x wait.", '"Rank 3 x wait."')
    for copied in (copy.deepcopy(whole), pickle.loads(pickle.dumps(made))):
        assert isinstance(copied, Message)
    with language.speaking("de"):
        assert language.said(whole) == "Rank 3 x warten."
        assert (
            language.said(numbered(say_many("waits for {names}", "wait for {names}", 1, names="y"), 2))
            == "warten auf y"
        )


def test_a_redacted_message_holds_no_original_in_any_language() -> None:
    hidden = say("{host}: a process was killed at the job's memory limit", host=say(" on {host}", host="secret-7"))
    covered = hidden.covered(lambda text: text.replace("secret-7", "host-1"))
    assert covered == " on host-1: a process was killed at the job's memory limit"
    with language.speaking("da"):
        assert language.said(covered) == " på host-1: en proces blev dræbt ved jobbets hukommelsesgrænse"


ENGLISH = re.compile(
    r"\b(?:the|which|never|waited|waits|entered|because|should|their|others|ranks? \d+ (?:on|was)|collect|every)\b",
    re.IGNORECASE,
)
"""Words that no Danish or German sentence of ours has."""


@pytest.mark.parametrize("lang", OTHERS)
@pytest.mark.parametrize("name", SAMPLES)
def test_the_first_screen_has_no_english_sentence(name: str, lang: str) -> None:
    page = _page(name, lang)
    first = page[page.index('<section class="first') : page.index("</section>", page.index('<section class="first'))]
    first = re.sub(r"<(code|pre)\b.*?</\1>", " ", first, flags=re.DOTALL)
    text = re.sub(r"<[^>]+>", " ", first)
    assert not ENGLISH.findall(text), text


def test_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inputs, _ = bundle(HERE / "samples" / "riser-xid79")
    told = {}
    for lang in language.LANGUAGES:
        asked = ["analyze", *inputs, "--lang", lang, "-o", f"{lang}.html", "--json", f"{lang}.json"]
        done = CliRunner().invoke(cli.main, asked)
        assert done.exit_code == 0, done.output
        told[lang] = done.stdout
        assert f'<html lang="{lang}">' in (tmp_path / f"{lang}.html").read_text(encoding="utf-8")
    assert len(set(told.values())) == 3
    assert (tmp_path / "de.json").read_bytes() == (tmp_path / "en.json").read_bytes()
    assert CliRunner().invoke(cli.main, ["analyze", *inputs, "--lang", "fr"]).exit_code == 2


def test_the_command_offers_every_language() -> None:
    (option,) = (p for p in cli.analyze.params if p.name == "lang")
    assert isinstance(option.type, click.Choice)
    assert tuple(option.type.choices) == language.LANGUAGES
