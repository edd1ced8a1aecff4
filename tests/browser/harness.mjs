// Generates reports with the command and opens them in a headless browser. Any error of a page fails its test.

import assert from 'node:assert/strict';
import {execFileSync, spawnSync} from 'node:child_process';
import {mkdtempSync, rmSync, statSync, writeFileSync} from 'node:fs';
import {tmpdir} from 'node:os';
import {join} from 'node:path';
import {pathToFileURL} from 'node:url';
import {chromium} from 'playwright-core';

const [sluice, executablePath] = process.argv.slice(2);
const folder = mkdtempSync(join(tmpdir(), 'sluice-report-'));
const kTimeout = 120_000;  // ms, generous for machines under load
const browser = await chromium.launch({executablePath, timeout: kTimeout, args: process.getuid() === 0 ? ['--no-sandbox'] : []});
const tests = [];

export const source = new URL('../../', import.meta.url).pathname;

export function write(name, text) {
  const path = join(folder, name);
  writeFileSync(path, text);
  return path;
}

// Runs `sluice ARGUMENTS`. Returns {status, stdout, stderr}.
export function command(...words) {
  return spawnSync(sluice, words, {encoding: 'utf8', maxBuffer: 1 << 28});
}

// Runs `sluice simulate ARGUMENTS --report`. Returns the path of the report.
let numReports = 0;
export function report(...words) {
  const path = join(folder, `report ${++numReports}.html`);
  try {
    execFileSync(sluice, ['simulate', ...words, '--report', path], {stdio: ['ignore', 'ignore', 'pipe']});
  } catch (error) {
    if (error.status !== 3) throw error;  // 3: the configuration does not fit in memory
  }
  return path;
}

// Opens a page without checks and waits for a console message that matches. Returns whether the script of the page ran.
export async function runsDespite(path, message) {
  const page = await browser.newPage();
  page.setDefaultTimeout(kTimeout);
  await Promise.all([page.waitForEvent('console', (logged) => message.test(logged.text())), page.goto(pathToFileURL(path).href)]);
  await settled(page);
  const ready = await page.evaluate(() => document.documentElement.dataset.ready !== undefined);
  await page.close();
  return ready;
}

// Repeats assertions until they pass: the effects of input events may be delayed. Fails with their error at the timeout.
export async function eventually(assertions) {
  for (const end = Date.now() + kTimeout; ;) {
    try {
      return await assertions();
    } catch (error) {
      if (Date.now() > end) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

export const sizeOf = (path) => statSync(path).size;

// Opens a report and passes its page to `body`. Fails on any error, violation of the content security policy, or request
// other than for the file. With `broken` the page must report that the timeline cannot be drawn. `init` runs before the
// scripts of the page.
export async function opened(path, {broken = false, init = () => {}, ...options}, body) {
  const context = await browser.newContext({viewport: {width: 1600, height: 1000}, ...options});
  const page = await context.newPage();
  page.setDefaultTimeout(kTimeout);
  const problems = [];
  page.on('console', (message) => {
    // Caused by the tests, which read pixels back.
    if (!message.text().includes('willReadFrequently')) problems.push(`console: ${message.text()}`);
  });
  page.on('pageerror', (error) => problems.push(`error: ${error.stack}`));
  page.on('request', (request) => {
    if (request.url() !== pathToFileURL(path).href) problems.push(`request: ${request.url()}`);
  });
  page.on('dialog', (dialog) => {
    problems.push(`dialog: ${dialog.message()}`);
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
  assert.deepEqual(problems, []);
  await context.close();
}

// Waits until all scheduled frames have been painted.
export function settled(page) {
  return page.evaluate(() => new Promise((resolve) => {
    requestAnimationFrame(() => requestAnimationFrame(resolve));
  }));
}

// Returns the colour, "#rrggbb", of timeline `which` at a time in seconds and a fraction of the height of a rank's row. `lane`:
// compute or parts.
export function colourAt(page, which, rank, seconds, height = 0.5, lane = 'compute') {
  return page.evaluate(([k, r, t, s, kind]) => {
    const timeline = timelines[k];
    const row = timeline.rows.find((each) => each.lane.kind === kind && each.lane.rank === r);
    const x = Math.floor(view.x(t * 1e9) * view.ratio);
    const y = Math.floor((row.y + row.height * s - timeline.box.scrollTop) * view.ratio);
    const [red, green, blue] = timeline.surface.context.getImageData(x, y, 1, 1).data;
    return '#' + [red, green, blue].map((value) => value.toString(16).padStart(2, '0')).join('');
  }, [which, rank, seconds, height, lane]);
}

// Returns the position in the window of a time in seconds and the middle of a rank's row.
export function placeOf(page, which, rank, seconds, lane = 'compute') {
  return page.evaluate(([k, r, t, kind]) => {
    const timeline = timelines[k];
    timeline.box.scrollIntoView({block: 'center'});
    const row = timeline.rows.find((each) => each.lane.kind === kind && each.lane.rank === r);
    const box = timeline.box.getBoundingClientRect();
    return [box.left + 1 + view.x(t * 1e9), box.top + 1 + row.y + row.height / 2 - timeline.box.scrollTop];
  }, [which, rank, seconds, lane]);
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
