(() => {
  "use strict";
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];

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
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.setAttribute("aria-label", place.matches("pre") ? "Copy the command" : "Copy the line");
    button.addEventListener("click", async () => {
      button.textContent = (await copied(text)) ? "Copied" : "Not allowed";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    place.append(button);
  }

  // Filters: every word must stand in the row.
  for (const form of all("form.filter")) {
    const target = document.getElementById(form.dataset.for);
    if (!target) continue;
    const rows = all("tbody tr, li", target).map((row) => [row, row.textContent.toLowerCase()]);
    const [input, select, output] = ["input", "select", "output"].map((name) => form.querySelector(name));
    const apply = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      const role = select ? select.value : "";
      let shown = 0;
      for (const [row, text] of rows) {
        const hide = (role && !row.classList.contains(role)) || words.some((word) => !text.includes(word));
        row.hidden = hide;
        shown += hide ? 0 : 1;
      }
      output.textContent = words.length || role ? `${shown} of ${rows.length}` : "";
    };
    form.hidden = false;
    form.addEventListener("input", apply);
    form.addEventListener("submit", (event) => event.preventDefault());
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
