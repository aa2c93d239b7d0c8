(() => {
  "use strict";
  // Other languages: the page says its words for these.
  const words = JSON.parse(document.body.dataset.words || "{}");
  const say = (text, values = {}) => (words[text] || text).replace(/\{(\w+)\}/g, (_, name) => values[name]);
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const make = (name, className, text) => {
    const element = document.createElement(name);
    if (className) element.className = className;
    if (text) element.textContent = text;
    return element;
  };
  const button = (text, label, className, run) => {
    const element = make("button", className, text);
    element.type = "button";
    element.setAttribute("aria-label", label);
    element.addEventListener("click", run);
    return element;
  };
  const short = (number) => String(Math.round(number * 1e4) / 1e4);

  // Copy: the clipboard where the browser lets us, else the old way.
  const copied = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  };
  for (const place of all("[data-copy]")) {
    const text = place.textContent;
    const copy = button(say("Copy"), place.matches("pre") ? say("Copy the command") : say("Copy the line"), "copy", async () => {
      copy.textContent = (await copied(text)) ? say("Copied") : say("Not allowed");
      setTimeout(() => { copy.textContent = say("Copy"); }, 2000);
    });
    place.append(copy);
  }

  // The analysis, unpacked where it is packed, as a file.
  const data = document.getElementById("analysis");
  const analysis = async () => {
    if (data.type === "application/json") return new Blob([data.textContent]);
    const bytes = Uint8Array.from(atob(data.textContent), (c) => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).blob();
  };
  if (data.type === "application/json" || "DecompressionStream" in window) {
    document.getElementById("data").append(" ", button(say("Save as JSON"), say("Save as JSON"), "", async () => {
      const link = make("a");
      link.href = URL.createObjectURL(await analysis());
      link.download = "analysis.json";
      link.click();
      URL.revokeObjectURL(link.href);
    }));
  }

  // Filters: every word must stand in the row; "rank:6" looks in that column alone. Escape empties.
  for (const hint of all(".hint")) hint.hidden = false;
  const filters = new Map();
  for (const form of all("form.filter")) {
    const target = document.getElementById(form.dataset.for);
    if (!target) continue;
    const columns = all("thead th", target).map((cell) => cell.textContent.toLowerCase().split(/[\s,]/)[0]);
    const rows = all("tbody tr, li", target).map((row) => [row, row.textContent.toLowerCase()]);
    const [input, select, output] = ["input", "select", "output"].map((name) => form.querySelector(name));
    const fits = (row, text, word) => {
      const colon = word.indexOf(":"), at = columns.indexOf(word.slice(0, colon));
      if (colon < 1 || at < 0) return text.includes(word);
      const cell = row.cells[at].textContent.trim().toLowerCase(), wanted = word.slice(colon + 1);
      return row.cells[at].classList.contains("num") ? cell === wanted : cell.includes(wanted);
    };
    const apply = () => {
      const terms = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      const role = select ? select.value : "";
      let shown = 0;
      for (const [row, text] of rows) {
        const hide = (role && !row.classList.contains(role)) || terms.some((word) => !fits(row, text, word));
        row.hidden = hide;
        shown += hide ? 0 : 1;
      }
      output.textContent = terms.length || role ? (shown ? say("{n} of {all}", { n: shown, all: rows.length }) : say("None of {all} fits", { all: rows.length })) : "";
    };
    form.hidden = false;
    form.addEventListener("input", apply);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      input.value = "";
      if (select) select.value = "";
      apply();
    });
    filters.set(form.dataset.for, (words) => { input.value = words; apply(); });
  }
  for (const link of all("a[data-find]")) {
    link.addEventListener("click", () => filters.get("event-table")?.(link.dataset.find));
  }

  // The timeline: a window [from, to] of the drawing, in percent, is stretched over its width.
  const EDGE = 3;  // pictures.py keeps this much free at both ends
  const SECOND = 1e6;
  const STEPS = [
    ...[0, 1, 2, 3, 4, 5].flatMap((power) => [1, 2, 5].map((n) => n * 10 ** power)),
    ...[1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800].map((s) => s * SECOND),
  ];
  for (const lanes of all(".lanes[data-first]")) {
    const first = Number(lanes.dataset.first), last = Number(lanes.dataset.last);
    const timeAt = (percent) => first + ((percent - EDGE) / (100 - 2 * EDGE)) * (last - first);
    const placeOf = (time) => EDGE + ((time - first) / (last - first)) * (100 - 2 * EDGE);
    const tracks = all(".lane > svg", lanes);
    const days = new Date(first / 1000).toISOString().slice(0, 10) !== new Date(last / 1000).toISOString().slice(0, 10);
    const parts = tracks.flatMap((track) => all("*", track)).filter((part) => !part.matches(".grid, .tick, .track")).flatMap((part) =>
      ["x", "x1", "x2", "width"].filter((name) => part.getAttribute(name)?.endsWith("%")).map((name) => [part, name, parseFloat(part.getAttribute(name))]));
    const axis = tracks.at(-1);
    const plain = new Map(tracks.map((track) => [track, all(".grid, .tick, .tick + text", track)]));
    let from = 0, to = 100;

    const clock = (time, step) => {
      const iso = new Date(Math.floor(time / 1000)).toISOString();
      const micro = String(((time % 1000) + 1000) % 1000).padStart(3, "0");
      const text = step >= 60 * SECOND ? iso.slice(11, 16) : step >= SECOND ? iso.slice(11, 19) : iso.slice(11, 23) + (step < 1000 ? micro : "");
      return (days ? iso.slice(5, 10) + " " : "") + text;
    };
    const line = (className, x, y2) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", "line");
      for (const [name, value] of Object.entries({ class: className, x1: x, x2: x, y1: 0, y2 })) element.setAttribute(name, value);
      return element;
    };
    const ticks = () => {
      for (const track of tracks) {
        for (const old of all(".zoomed", track)) old.remove();
        for (const mark of plain.get(track)) mark.classList.toggle("off", to - from < 99.99);
      }
      if (to - from >= 99.99) return;
      const begin = timeAt(from), end = timeAt(to);
      const step = STEPS.find((size) => (end - begin) / size <= 6) ?? STEPS.at(-1);
      for (let time = Math.ceil(begin / step) * step; time <= end; time += step) {
        const x = short(((placeOf(time) - from) / (to - from)) * 100) + "%";
        for (const track of tracks) if (!track.closest(".axis")) track.prepend(line("grid zoomed", x, "100%"));
        axis.append(line("tick zoomed", x, 5));
        const label = document.createElementNS("http://www.w3.org/2000/svg", "text");
        for (const [name, value] of Object.entries({ class: "zoomed", x, y: 17, "text-anchor": "middle" })) label.setAttribute(name, value);
        label.textContent = clock(time, step);
        axis.append(label);
      }
    };
    const show = (low, high) => {
      const wide = Math.min(100, Math.max(high - low, 0.01));
      from = Math.min(Math.max(low, 0), 100 - wide);
      to = from + wide;
      for (const [part, name, value] of parts) {
        const now = name === "width" ? (value / wide) * 100 : ((value - from) / wide) * 100;
        part.setAttribute(name, short(now) + "%");
      }
      for (const label of all(".barname", lanes)) {
        const bar = label.previousElementSibling, x = parseFloat(bar.getAttribute("x")), end = x + parseFloat(bar.getAttribute("width"));
        label.setAttribute("x", short((Math.max(x, 0) + Math.min(end, 100)) / 2) + "%");
      }
      ticks();
      lanes.classList.toggle("close", wide < 99.99);
      said.textContent = wide < 99.99 ? say("{first} to {last} UTC", { first: clock(timeAt(from), 1000), last: clock(timeAt(to), 1000) }) : "";
    };
    const zoom = (factor, around = (from + to) / 2) => {
      const wide = Math.min(100, (to - from) / factor), share = (around - from) / (to - from);
      show(around - share * wide, around + (1 - share) * wide);
    };
    const pan = (share) => show(from + share * (to - from), to + share * (to - from));
    const bar = make("div", "zoom");
    bar.setAttribute("role", "group");
    bar.setAttribute("aria-label", say("Zoom of the timeline"));
    const said = make("output");
    said.setAttribute("aria-live", "polite");
    bar.append(
      button("−", say("Zoom out"), "", () => zoom(0.5)),
      button("+", say("Zoom in"), "", () => zoom(2)),
      button("◀", say("Earlier"), "", () => pan(-0.25)),
      button("▶", say("Later"), "", () => pan(0.25)),
    );
    const named = new Map();
    for (const guide of all(".axis .gname", lanes)) named.set(guide.textContent, parseFloat(guide.getAttribute("x")));
    for (const [name, x] of named) bar.append(button(name, say("Zoom to {name}", { name }), "", () => show(x - 1, x + 1)));
    bar.append(button(say("all"), say("Show all"), "", () => show(0, 100)), said, make("span", "note", say("In the drawing: + and −, ← and →, 0; drag, or turn the wheel with Ctrl.")));
    const region = lanes.closest(".scroll");
    region.before(bar);
    region.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const wide = to - from < 99.99;
      const run = { "+": () => zoom(2), "=": () => zoom(2), "-": () => zoom(0.5), "0": () => show(0, 100), Escape: () => show(0, 100),
        ...(wide ? { ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), Home: () => show(0, to - from), End: () => show(100 - to + from, 100) } : {}) }[event.key];
      if (!run) return;
      event.preventDefault();
      run();
    });
    const shareAt = (event) => {
      const box = axis.getBoundingClientRect();
      return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    };
    lanes.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      zoom(event.deltaY < 0 ? 1.5 : 1 / 1.5, from + shareAt(event) * (to - from));
    }, { passive: false });
    lanes.addEventListener("dblclick", (event) => { if (!event.target.closest("a, .who")) zoom(3, from + shareAt(event) * (to - from)); });
    let held = null;
    lanes.addEventListener("pointerdown", (event) => {
      if (event.button === 0 && event.pointerType === "mouse" && to - from < 99.99 && event.target.closest("svg")) held = { at: shareAt(event), from, to, moved: false };
    });
    addEventListener("pointermove", (event) => {
      if (!held) return;
      const by = (held.at - shareAt(event)) * (held.to - held.from);
      held.moved ||= Math.abs(by) > 0.005 * (held.to - held.from);
      if (held.moved) show(held.from + by, held.to + by);
    });
    addEventListener("pointerup", () => { setTimeout(() => { held = null; }); });
    lanes.addEventListener("click", (event) => { if (held?.moved) event.preventDefault(); }, true);
    lanes.addEventListener("dragstart", (event) => event.preventDefault());
    lanes.addEventListener("focusin", (event) => {
      const mark = event.target.closest("a")?.querySelector(".mark");
      const x = mark ? parseFloat(mark.getAttribute("x")) : 50;
      if (x < 0 || x > 100) { const middle = from + (x / 100) * (to - from); show(middle - (to - from) / 2, middle + (to - from) / 2); }
    });
    addEventListener("beforeprint", () => show(0, 100));
  }

  const states = Object.fromEntries(all(".legend .c:not(.rep)").map((cell) => [cell.classList[1], cell.parentElement.textContent.replace(/^\S+\s*/, "").replace(/:.*/, "").trim()]));

  // The rank map: arrows move, digits find, Enter opens the rank's row; its state is told below.
  for (const map of all(".map[data-rows]")) {
    const cells = all(".cells .c", map), prefix = map.dataset.rows;
    if (!cells.length) continue;
    const table = document.getElementById(`${prefix}-rank-table`);
    const rows = new Map(all("tbody tr", table).map((row) => [row.cells[0].textContent.trim(), row]));
    const rankOf = (cell) => cell.title.match(/\d+$/)?.[0];
    const rowOf = (cell) => rows.get(rankOf(cell));
    const heads = () => all("thead th", table).map((head) => head.textContent.toLowerCase());
    const card = make("p", "card");
    card.setAttribute("aria-live", "polite");
    map.after(card);
    map.setAttribute("role", "listbox");
    map.tabIndex = 0;
    cells.forEach((cell, at) => {
      cell.id = `${prefix}-cell-${at}`;
      cell.setAttribute("role", "option");
      cell.setAttribute("aria-selected", "false");
      const host = cell.closest(".host").querySelector(".name").textContent;
      cell.setAttribute("aria-label", `${cell.title || cell.textContent}, ${states[cell.classList[1]] ?? ""}, ${host}`);
    });
    for (const host of all(".host", map)) {
      const list = host.querySelector(".cells");
      list.setAttribute("role", "group");
      list.setAttribute("aria-label", host.querySelector(".name").textContent);
    }
    let now = -1, typed = "", typedAt = 0;
    const choose = (at) => {
      if (now >= 0) { cells[now].setAttribute("aria-selected", "false"); cells[now].classList.remove("on"); }
      now = at;
      card.textContent = "";
      if (at < 0) { map.removeAttribute("aria-activedescendant"); return; }
      const cell = cells[at], row = rowOf(cell);
      cell.setAttribute("aria-selected", "true");
      cell.classList.add("on");
      map.setAttribute("aria-activedescendant", cell.id);
      cell.scrollIntoView({ block: "nearest" });
      if (!row) { card.textContent = cell.getAttribute("aria-label"); return; }
      const names = heads();
      const facts = [...row.cells].map((part, n) => [names[n], part.textContent.replace(/\s+/g, " ").trim().slice(part.querySelector(".c") ? 2 : 0)]);
      card.append(make("b", "", cell.title), ` ${facts.slice(1).filter(([, text]) => text && text !== "n/a" && text !== "–").map(([name, text]) => `${name}: ${text}`).join(" · ")} `);
      const link = make("a", "", say("its row"));
      link.href = "#" + row.id;
      card.append(link);
    };
    const above = (step) => {
      const box = cells[now].getBoundingClientRect(), middle = box.left + box.width / 2;
      let best = now, score = Infinity;
      cells.forEach((cell, at) => {
        const other = cell.getBoundingClientRect(), down = (other.top - box.top) * step;
        if (down < 4) return;
        const far = down * 1000 + Math.abs(other.left + other.width / 2 - middle);
        if (far < score) { score = far; best = at; }
      });
      return best;
    };
    map.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const at = Math.max(now, 0), key = event.key;
      if (/^\d$/.test(key)) {
        typed = event.timeStamp - typedAt < 1000 ? typed + key : key;
        typedAt = event.timeStamp;
        const found = cells.findIndex((cell) => rankOf(cell) === typed);
        if (found >= 0) choose(found);
        event.preventDefault();
        return;
      }
      const run = {
        ArrowRight: () => choose(now < 0 ? 0 : Math.min(at + 1, cells.length - 1)), ArrowLeft: () => choose(Math.max(at - 1, 0)),
        ArrowDown: () => choose(now < 0 ? 0 : above(1)), ArrowUp: () => choose(now < 0 ? 0 : above(-1)),
        Home: () => choose(0), End: () => choose(cells.length - 1), Escape: () => choose(-1),
        Enter: () => { const row = now >= 0 && rowOf(cells[now]); if (row) location.hash = row.id; },
      }[key];
      if (!run) return;
      event.preventDefault();
      run();
    });
    map.addEventListener("click", (event) => {
      const cell = event.target.closest(".c");
      if (cell) choose(cells.indexOf(cell));
    });
  }

  // A link into something folded opens it.
  const reveal = () => {
    let name = "";
    try { name = decodeURIComponent(location.hash.slice(1)); } catch { return; }
    const target = name && document.getElementById(name);
    if (!target) return;
    for (let at = target.closest("details:not([open])"); at; at = at.parentElement.closest("details:not([open])")) at.open = true;
    for (const details of all(":scope > details", target)) details.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  reveal();

  // Paper has no buttons: open what is folded, except the long list of events, and fold it again afterwards.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = all("details:not([open])").filter((details) => !details.closest("#events"));
    for (const details of opened) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of opened) details.open = false;
  });
})();
