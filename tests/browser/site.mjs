// Tests of the static site that tools/site.sh writes: site.mjs FOLDER CHROMIUM. Every page is opened in two sizes and two
// colour schemes. Its links lead somewhere, it is no wider than its window, and nothing but its own files is loaded.

import assert from 'node:assert/strict';
import {existsSync, readdirSync} from 'node:fs';
import {join, relative, resolve} from 'node:path';
import {fileURLToPath, pathToFileURL} from 'node:url';
import {chromium} from 'playwright-core';

const [folder, executablePath] = process.argv.slice(2);
const site = resolve(folder);
const pages = readdirSync(site, {recursive: true}).filter((name) => name.endsWith('.html')).sort();
assert.ok(pages.includes('index.html') && pages.includes('docs/guide.html') && pages.includes('python/sluice.html'));
const browser = await chromium.launch({executablePath, args: process.getuid() === 0 ? ['--no-sandbox'] : []});
const anchors = new Map();  // of each page
const links = [];

async function check(name, width, colorScheme) {
  const context = await browser.newContext({viewport: {width, height: 900}, colorScheme});
  const page = await context.newPage();
  const problems = [];
  page.on('console', (message) => {
    if (!message.text().includes('willReadFrequently')) problems.push(`console: ${message.text()}`);
  });
  page.on('pageerror', (error) => problems.push(`error: ${error.stack}`));
  page.on('request', (request) => {
    const url = request.url();
    if (url.startsWith('file:') ? relative(site, fileURLToPath(url)).startsWith('..') : !/^(data|blob):/.test(url)) {
      problems.push(`request: ${url}`);
    }
  });
  await page.addInitScript(() => {
    addEventListener('securitypolicyviolation', (event) => console.error(`policy: ${event.violatedDirective}`));
  });
  await page.goto(pathToFileURL(join(site, name)).href, {waitUntil: 'load'});
  const seen = await page.evaluate(() => ({
    title: document.title,
    policy: document.querySelector('meta[http-equiv="Content-Security-Policy"]')?.content ?? '',
    headings: document.querySelectorAll('h1, h2').length,
    wider: document.documentElement.scrollWidth - innerWidth,
    widest: [...document.querySelectorAll('main *')].filter((each) => each.getBoundingClientRect().right > innerWidth + 1 &&
      !each.closest('pre, .wide, table, .signature')).slice(0, 3).map((each) => each.outerHTML.slice(0, 80)),
    ids: [...document.querySelectorAll('[id]')].map((each) => each.id),
    links: [...document.querySelectorAll('a[href]')].map((each) => each.getAttribute('href')),
    pictures: [...document.images].filter((each) => !each.complete || each.naturalWidth === 0).map((each) => each.src),
    // The brightness of the page and of its text.
    colours: [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color].map((colour) =>
      colour.match(/\d+/g).slice(0, 3).reduce((sum, value) => sum + Number(value), 0) / 765),
  }));
  assert.notEqual(seen.title, '', 'a title');
  assert.ok(seen.headings > 0, 'a heading');
  assert.match(seen.policy, /default-src 'none'/);
  assert.ok(seen.wider <= 0, `${seen.wider} px wider than ${width}: ${seen.widest.join(' ')}`);
  assert.deepEqual(seen.pictures, [], 'pictures that are not drawn');
  const [back, text] = seen.colours;
  assert.ok(colorScheme === 'dark' ? back < 0.3 && text > 0.6 : back > 0.9 && text < 0.4, `${colorScheme}: ${seen.colours}`);
  assert.deepEqual(problems, []);
  anchors.set(name, new Set(seen.ids));
  links.push(...seen.links.map((href) => [name, href]));
  await context.close();
}

let failed = 0;
async function test(name, body) {
  try {
    await body();
  } catch (error) {
    ++failed;
    console.log(`FAILED  ${name}\n${error.message}`);
  }
}

for (const name of pages) {
  for (const [width, scheme] of [[390, 'dark'], [1600, 'light']]) {
    await test(`${name}, ${width} px, ${scheme}`, () => check(name, width, scheme));
  }
}
await test('links', () => {
  const broken = new Set();
  for (const [from, href] of links) {
    if (/^(https?:|mailto:|data:|blob:)/.test(href)) continue;
    const [path, anchor] = href.split('#');
    const to = path === '' ? from : relative(site, resolve(site, from, '..', decodeURIComponent(path)));
    if (!existsSync(join(site, to))) broken.add(`${from}: ${href}`);
    else if (anchor && anchors.has(to) && !anchors.get(to).has(decodeURIComponent(anchor))) broken.add(`${from}: ${href}`);
  }
  assert.deepEqual([...broken], []);
  // Every page can be reached from the first.
  const reached = new Set(['index.html']);
  for (const from of reached) {
    for (const [page, href] of links) {
      if (page !== from || /^[a-z]+:/.test(href)) continue;
      const to = relative(site, resolve(site, from, '..', decodeURIComponent(href.split('#')[0] || '.')));
      if (pages.includes(to)) reached.add(to);
    }
  }
  assert.deepEqual(pages.filter((name) => !reached.has(name)), [], 'pages that no link leads to');
});
await browser.close();
console.log(`${pages.length} pages, ${links.length / 2} links, ${failed} failures`);
process.exit(failed === 0 ? 0 : 1);
