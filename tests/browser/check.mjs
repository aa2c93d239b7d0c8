// node check.mjs PAGE.html...: opens each page light and wide, dark and narrow, without script and as for paper; prints what is wrong as JSON.
import { chromium } from "playwright-core";
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
const wrong = [];
for (const name of process.argv.slice(2)) {
  const say = (what) => wrong.push(`${name.split("/").pop()}: ${what}`);
  const large = readFileSync(name).length > 600_000;
  for (const [scheme, width] of [["light", 1440], ["dark", 360]]) {
    const page = await browser.newPage({ viewport: { width, height: 900 }, colorScheme: scheme });
    const url = pathToFileURL(name).href;
    page.on("console", (message) => say(`console: ${message.text()}`));
    page.on("pageerror", (error) => say(`error: ${error.message}`));
    page.on("dialog", (dialog) => { say(`dialog: ${dialog.message()}`); dialog.dismiss(); });
    page.on("request", (request) => { if (request.url() !== url) say(`request: ${request.url()}`); });
    await page.goto(url);
    const wider = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    if (wider > 0) say(`${width} px: ${wider} px too wide`);
    // A thousand rows take axe a minute; one theme is enough there.
    if (!large || scheme === "dark") {
      // Playwright's evaluate is not bound by the page's policy.
      await page.evaluate(axe);
      const found = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
      for (const v of found.violations) say(`${scheme} ${width}: ${v.id}: ${v.nodes.length} × ${v.nodes[0].html.slice(0, 160)}: ${v.nodes[0].any[0]?.message ?? ""}`);
    }
    if (scheme === "light" && width === 1440) {
      for (const form of await page.locator("form.filter:visible").all()) {
        const rows = page.locator(`#${await form.getAttribute("data-for")} :is(tbody tr, li)`);
        await form.locator("input").fill("no such words anywhere");
        const left = await rows.evaluateAll((list) => list.filter((row) => !row.hidden).length);
        if (left) say(`filter leaves ${left} rows`);
        await form.locator("input").fill("");
      }
      await page.evaluate(() => dispatchEvent(new Event("beforeprint")));
      const folded = await page.evaluate(() => [...document.querySelectorAll("details:not([open])")].filter((d) => !d.closest("#events")).length);
      if (folded) say(`${folded} parts stay folded on paper`);
      await page.evaluate(() => dispatchEvent(new Event("afterprint")));
      const saved = page.waitForEvent("download", { timeout: 5000 });
      await page.locator("#data button").click();
      const kept = JSON.parse(readFileSync(await (await saved).path(), "utf8"));
      if (!kept.schema || !Array.isArray(kept.incidents)) say("the saved data is not the analysis");
      const last = page.locator("tr[id]").last();
      if (await last.count()) {
        await page.evaluate((id) => { location.hash = id; }, await last.getAttribute("id"));
        await page.waitForTimeout(50);
        if (!(await last.isVisible())) say("a link into a folded part does not open it");
      }
    }
    await page.close();
  }
  const context = await browser.newContext({ javaScriptEnabled: false });
  const plain = await context.newPage();
  await plain.goto(pathToFileURL(name).href);
  if (await plain.locator("form.filter:visible, button.copy").count()) say("without JavaScript there are dead controls");
  await context.close();
}
await browser.close();
console.log(JSON.stringify(wrong, null, 1));
