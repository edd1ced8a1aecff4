// Reports made by the command and opened in a headless browser, where nothing may go wrong unseen.

import assert from 'node:assert/strict';
import {execFileSync} from 'node:child_process';
import {mkdtempSync, rmSync, statSync, writeFileSync} from 'node:fs';
import {tmpdir} from 'node:os';
import {join} from 'node:path';
import {pathToFileURL} from 'node:url';
import {chromium} from 'playwright-core';

const [sluice, executablePath] = process.argv.slice(2);
const folder = mkdtempSync(join(tmpdir(), 'sluice-report-'));
const browser = await chromium.launch({executablePath, args: process.getuid() === 0 ? ['--no-sandbox'] : []});
const tests = [];

export const source = new URL('../../', import.meta.url).pathname;

export function write(name, text) {
  const path = join(folder, name);
  writeFileSync(path, text);
  return path;
}

// Runs `sluice simulate ARGUMENTS --report`; the report's path.
let made = 0;
export function report(...words) {
  const path = join(folder, `report ${++made}.html`);
  try {
    execFileSync(sluice, ['simulate', ...words, '--report', path], {stdio: ['ignore', 'ignore', 'pipe']});
  } catch (error) {
    if (error.status !== 3) throw error;  // 3: it does not fit, which is an answer
  }
  return path;
}

// The messages that a page logs when it is opened without any expectation.
export async function messagesOf(path) {
  const page = await browser.newPage();
  const messages = [];
  page.on('console', (message) => messages.push(message.text()));
  await page.goto(pathToFileURL(path).href);
  await settled(page);
  const ready = await page.evaluate(() => document.documentElement.dataset.ready !== undefined);
  await page.close();
  return {messages, ready};
}

export const sizeOf = (path) => statSync(path).size;

// Opens a report and hands its page to `body`. Afterwards: no errors, nothing the policy refused, no requests but the file.
// With `broken` the timeline cannot be drawn, and the page must say so; with `init` that script runs first.
export async function opened(path, {broken = false, init = () => {}, ...options}, body) {
  const context = await browser.newContext({viewport: {width: 1600, height: 1000}, ...options});
  const page = await context.newPage();
  page.setDefaultTimeout(120_000);
  const wrong = [];
  page.on('console', (message) => {
    // The tests read pixels back; readers do not.
    if (!message.text().includes('willReadFrequently')) wrong.push(`console: ${message.text()}`);
  });
  page.on('pageerror', (error) => wrong.push(`error: ${error.stack}`));
  page.on('request', (request) => {
    if (request.url() !== pathToFileURL(path).href) wrong.push(`request: ${request.url()}`);
  });
  page.on('dialog', (dialog) => {
    wrong.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  await page.addInitScript(() => {
    addEventListener('securitypolicyviolation', (event) => console.error(`policy: ${event.violatedDirective}`));
  });
  await page.addInitScript(init);
  await page.goto(pathToFileURL(path).href);
  if (options.javaScriptEnabled !== false) {
    await page.waitForFunction(() => document.documentElement.dataset.ready || !document.getElementById('trouble').hidden);
    assert.equal(await page.locator('#trouble').isVisible(), broken, await page.locator('#trouble').textContent());
    await settled(page);
  }
  await body(page);
  assert.deepEqual(wrong, []);
  await context.close();
}

// Waits until what was asked for has been painted.
export function settled(page) {
  return page.evaluate(() => new Promise((resolve) => {
    requestAnimationFrame(() => requestAnimationFrame(resolve));
  }));
}

// The colour, "#rrggbb", of timeline `which` at a time in seconds and a share of a rank's row.
export function colourAt(page, which, rank, seconds, share = 0.5) {
  return page.evaluate(([k, r, t, s]) => {
    const timeline = timelines[k];
    const row = timeline.rows.find((each) => each.lane.kind === 'compute' && each.lane.rank === r);
    const x = Math.floor(view.x(t * 1e9) * view.ratio);
    const y = Math.floor((row.y + row.height * s - timeline.box.scrollTop) * view.ratio);
    const [red, green, blue] = timeline.surface.context.getImageData(x, y, 1, 1).data;
    return '#' + [red, green, blue].map((value) => value.toString(16).padStart(2, '0')).join('');
  }, [which, rank, seconds, share]);
}

// Where on the window that is.
export function placeOf(page, which, rank, seconds) {
  return page.evaluate(([k, r, t]) => {
    const timeline = timelines[k];
    timeline.box.scrollIntoView({block: 'center'});
    const row = timeline.rows.find((each) => each.lane.kind === 'compute' && each.lane.rank === r);
    const box = timeline.box.getBoundingClientRect();
    return [box.left + 1 + view.x(t * 1e9), box.top + 1 + row.y + row.height / 2 - timeline.box.scrollTop];
  }, [which, rank, seconds]);
}

export function test(name, body) { tests.push({name, body}); }

export async function runAll() {
  let failed = 0;
  for (const {name, body} of tests) {
    try {
      await body();
      console.log(`ok      ${name}`);
    } catch (error) {
      ++failed;
      console.log(`FAILED  ${name}\n${error.stack}`);
    }
  }
  await browser.close();
  rmSync(folder, {recursive: true});
  console.log(`${tests.length - failed} of ${tests.length} passed`);
  process.exit(failed === 0 ? 0 : 1);
}
