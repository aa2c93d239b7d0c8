// node shot.mjs PAGE.html OUT.png WIDTH HEIGHT light|dark [full]: a picture of a page, for the eye and for docs/screenshots.
import { chromium } from "playwright-core";
import { pathToFileURL } from "node:url";

const [page_, out, width, height, scheme = "light", full = ""] = process.argv.slice(2);
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
const page = await browser.newPage({ viewport: { width: Number(width), height: Number(height) }, colorScheme: scheme });
await page.goto(pathToFileURL(page_).href);
await page.screenshot({ path: out, fullPage: full === "full" });
await browser.close();
