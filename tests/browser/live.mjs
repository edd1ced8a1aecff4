// Tests of live pages, in Node.js and in a browser: the engine of the page must predict what the command predicts.

import assert from 'node:assert/strict';
import {readFileSync} from 'node:fs';
import {inflateSync} from 'node:zlib';
import {command, eventually, opened, placeOf, report, runAll, settled, sizeOf, source, test} from './harness.mjs';

const times = {f: 1, b: 1.1, w: 0.9, comm: 0.05};
const small = report('--schedule', '1f1b', '--pp', '4', '--microbatches', '8', '--uniform', 'f=1,b=1.1,w=0.9,comm=0.05', '--live');

// The engine of the page in Node.js, from the bytes and the script of the page.
const html = readFileSync(small, 'utf8');
const bytes = inflateSync(Buffer.from(/id="engine">([^<]*)</.exec(html)[1], 'base64'));
const startEngine = new Function(readFileSync(source + 'traces/report/engine.js', 'utf8') + '; return startEngine;')();
const run = await startEngine(bytes);
const {families} = run({families: true}).header;

// The scenario of a family, and the flags that describe the same to the command.
function settings(family, pp, microbatches) {
  const scenario = {parallelism: {pp}, batch: {microbatches}, schedule: {name: family.name}, cost: {kind: 'uniform', ...times}};
  const words = ['--schedule', family.name, '--pp', pp, '--microbatches', microbatches, '--uniform',
                 Object.entries(times).map((pair) => pair.join('=')).join()];
  if (family.sliced) {
    scenario.schedule.slices = 3;
    words.push('--slices', 3);
  }
  if (family.fixed_chunks === 0) {
    scenario.parallelism.vpp = 2;
    words.push('--vpp', 2);
  }
  return [{scenario, document: true, tables: false}, words.map(String)];
}

// The document of a live page has no scenario: the page itself has it.
const withoutScenario = (text) => text.replace(/^  "scenario": \{\n[^]*?^  \},\n/m, '');

// What the command prints: its document, or its message without the name of the program and of the source.
function expected(words) {
  const {status, stdout, stderr} = command('simulate', ...words, '--json');
  return {status, text: status === 0 ? withoutScenario(stdout) : stderr.replace(/^sluice: /, '').trim()};
}

const grid = families.flatMap((family) => [[2, 4], [4, 4], [4, 8], [8, 16], [3, 5]].map(([pp, m]) => {
  const [request, words] = settings(family, pp, m);
  return {name: `${family.name}, ${pp} ranks, ${m} microbatches`, request, ...expected(words)};
}));

function compare(results) {
  let valid = 0;
  results.forEach(({status, header}, i) => {
    assert.equal(status, grid[i].status, grid[i].name);
    if (status === 0) {
      ++valid;
      assert.equal(header.document, grid[i].text, grid[i].name);
    }
  });
  // Some families need an even number of ranks or as many microbatches as ranks.
  assert.ok(valid > 3 * families.length, `${valid} of ${results.length} are valid`);
  const seen = new Set(results.flatMap(({status}, i) => status === 0 ? [grid[i].request.scenario.schedule.name] : []));
  assert.deepEqual([...seen], families.map(({name}) => name), 'every family is valid somewhere');
}

test('in Node.js all families have the documents of the command', () => compare(grid.map(({request}) => run(request))));

test('in the browser all families have the documents of the command', () => opened(small, {}, async (page) => {
  await ready(page);
  compare(await page.evaluate((requests) => requests.map((request) => {
    const {status, header} = live.run(request);
    return {status, header};
  }), grid.map(({request}) => request)));
}));

test('models on clusters have the documents of the command', () => {
  for (const name of ['llama3-8b-zbv-h100', 'gpt3-175b-a100', 'deepseek-v3-h800']) {
    const file = `${source}examples/${name}.json`;
    const {status, stdout} = command('simulate', file, '--json');
    assert.equal(status, 0, name);
    const path = report(file, '--live');
    const request = JSON.parse(/id="request">([^<]*)</.exec(readFileSync(path, 'utf8'))[1]);
    const result = run({...request, document: true});
    assert.equal(result.status, 0, result.header);
    assert.equal(result.header.document, withoutScenario(stdout), name);
  }
});

async function ready(page) {
  await page.waitForFunction(() => document.documentElement.dataset.live !== undefined);
}

// Returns the values of the summary by label.
const summary = (page) => page.$$eval('.cards > div', (all) => Object.fromEntries(
  all.map((each) => [each.querySelector('dt').textContent, each.querySelector('strong').textContent])));

test('controls simulate again', () => opened(small, {}, async (page) => {
  await ready(page);
  const before = await page.evaluate(() => timelines[0].run.makespan);
  await page.selectOption('#family', 'zb-h1');
  const shown = (words) => eventually(async () => {
    const {makespan_s: seconds} = JSON.parse(expected(words).text);
    assert.equal(await page.evaluate(() => timelines[0].run.makespan), Math.round(seconds * 1e9));
  });
  const flags = (pp, m, family, cost) => ['--schedule', family, '--pp', pp, '--microbatches', m, '--uniform', cost].map(String);
  await shown(flags(4, 8, 'zb-h1', 'f=1,b=1.1,w=0.9,comm=0.05'));
  await page.fill('#knob-pp', '6');
  await shown(flags(6, 8, 'zb-h1', 'f=1,b=1.1,w=0.9,comm=0.05'));
  await page.locator('#knob-microbatches').focus();
  await page.keyboard.press('ArrowUp');
  await page.fill('#knob-w', '0.25');
  await page.fill('#knob-comm', '0.125');
  await shown(flags(6, 9, 'zb-h1', 'f=1,b=1.1,w=0.25,comm=0.125'));
  await page.locator('[aria-label="F: forward, s, slider"]').focus();
  await page.keyboard.press('End');  // of 0 to 5 s
  await shown(flags(6, 9, 'zb-h1', 'f=5,b=1.1,w=0.25,comm=0.125'));
  // Tables and scenario follow.
  await eventually(async () => assert.match(await page.textContent('h1'), /^zb-h1, 6 ranks, 9 microbatches/));
  assert.equal(await page.locator('table.ranks tbody tr').count(), 6);
  assert.deepEqual(JSON.parse(await page.textContent('pre.scenario')).parallelism, {pp: 6});
  await page.selectOption('#family', 'seq1f1b');
  await page.fill('#knob-slices', '3');
  await eventually(async () => assert.match(await page.evaluate(() => timelines[0].run.name), /9 microbatches x 3 slices/));
  assert.ok(await page.locator('#knob-vpp').isHidden());
  await page.click('#reset');
  await page.waitForFunction((makespan) => timelines[0].run.makespan === makespan, before);
}));

test('a model and a cluster of the catalogue are predicted as by the command', () => opened(small, {}, async (page) => {
  await ready(page);
  assert.ok(await page.locator('#cluster').isHidden());
  await page.selectOption('#model', 'llama3-8b');
  await page.selectOption('#cluster', 'dgx-a100-80gb');
  await page.fill('#knob-tp', '2');
  await page.fill('#knob-seq', '2048');
  await page.selectOption('#recompute', 'full');
  const {makespan_s: seconds} = JSON.parse(expected(['--model', 'llama3-8b', '--cluster', 'dgx-a100-80gb', '--schedule', '1f1b', '--pp', '4', '--tp',
                                                     '2', '--microbatches', '8', '--seq-length', '2048', '--recompute', 'full']).text);
  await page.waitForFunction((makespan) => timelines[0].run.makespan === makespan, Math.round(seconds * 1e9));
  assert.ok(await page.locator('#knob-f').isHidden());
  const assumed = () => page.$$eval('section[aria-labelledby=h-assumed]', (all) => all.map((each) => each.textContent).join());
  await eventually(async () => assert.match(await assumed(), /attention kernel/));
  await page.click('#keep');  // with the memory of both
  await page.waitForFunction(() => timelines.length === 2 && curves.length === 2 && curves[0].most === curves[1].most);
  await page.click('#keep');
  await page.waitForFunction(() => timelines.length === 1 && curves.length === 1);
  await page.selectOption('#model', '');
  await page.waitForFunction(() => timelines[0].run.name.startsWith('1f1b, 4 ranks') && timelines[0].run.makespan > 30e9);
  await eventually(async () => assert.doesNotMatch(await assumed(), /attention kernel/));
}));

for (const [width, touch] of [[390, true], [1600, false]]) {
  test(`a run is kept beside the next one, and the address is both, at ${width} px`, () => opened(small, {
    viewport: {width, height: 900}, hasTouch: touch}, async (page) => {
    await ready(page);
    assert.equal(new URL(page.url()).hash, '');
    await page.click('#keep');
    await page.selectOption('#family', 'zb-v');
    await page.waitForFunction(() => timelines.length === 2 && timelines[0].run.name.startsWith('zb-v'));
    await eventually(async () => assert.match(await page.innerText('section[aria-labelledby=h-headline]'), /zb-v[^]*1f1b/));
    assert.equal(await page.evaluate(() => view.end), await page.evaluate(() => Math.max(...timelines.map(({run}) => run.makespan))));
    assert.deepEqual(await page.$$eval('.plot-head .run', (all) => all.map((each) => each.textContent)), ['A', 'B']);
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
    await eventually(async () => assert.match(decodeURIComponent(new URL(page.url()).hash), /"name":"zb-v"[^]*"beside"/));
    const before = await page.evaluate(() => timelines.map(({run}) => [run.name, run.makespan]));
    await page.reload();
    await ready(page);
    assert.deepEqual(await page.evaluate(() => timelines.map(({run}) => [run.name, run.makespan])), before);
    assert.equal(await page.inputValue('#family'), 'zb-v');
    if (touch) {
      await settled(page);  // updates hide the card
      await page.touchscreen.tap(...await placeOf(page, 1, 0, 0.5));
      await page.locator('#card').waitFor();
    }
    await page.click('#keep');
    await page.waitForFunction(() => timelines.length === 1);
    assert.equal(await page.locator('.plot-head .run').first().isVisible(), false);
    // An address without a valid run is refused, also while an update is waiting; the page's own run stays.
    await page.evaluate(() => { scheduleUpdate(); location.hash = '{"scenario": {"parallelism": {"pp": 0}}}'; });
    await page.locator('#refusal').waitFor();
    assert.match(await page.textContent('#refusal'), /the address of this page has no valid run: .*pp/);
  }));
}

test('a memory cap is checked, and limits the automatic schedule', () => opened(small, {}, async (page) => {
  await ready(page);
  await page.fill('#cap', '2');
  const flight = async () => page.$$eval('.cards > div', (all) => all.find((each) => each.innerText.startsWith('In flight')).innerText);
  await eventually(async () => assert.match(await flight(), /4\s+2 ranks above the cap/));  // 1F1B: 4, 3, 2, 1
  await page.selectOption('#family', 'auto');
  await eventually(async () => assert.match(await page.textContent('#summary'), /list scheduling/));
  await eventually(async () => assert.ok(!(await flight()).includes('above the cap')));
}));

test('values that are not valid are refused, and the last run stays', () => opened(small, {}, async (page) => {
  await ready(page);
  const before = await summary(page);
  await page.selectOption('#family', 'dualpipe');
  await page.fill('#knob-pp', '3');
  await page.locator('#refusal').waitFor();
  assert.match(await page.textContent('#refusal'), /^dualpipe: /);
  await page.fill('#knob-pp', '64');
  await page.fill('#knob-microbatches', '100000');
  await eventually(async () => assert.match(await page.textContent('#refusal'), /a live page simulates up to 400 000/));
  await page.click('#reset');
  await page.locator('#refusal').waitFor({state: 'hidden'});
  assert.equal((await summary(page)).Iteration, before.Iteration);
}));

test('a schedule of the reader runs, or shows the cycle that blocks it', () => opened(small, {}, async (page) => {
  await ready(page);
  await page.click('#own > summary');
  await page.click('#own-fill');
  assert.match(await page.inputValue('#csv'), /^0F0,0F1,0F2,0F3,0B0,/);
  await page.fill('#csv', '0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n');
  // Both orders are 1F1B with 2 ranks and 2 microbatches.
  const {makespan_s: seconds} = JSON.parse(expected(['--schedule', '1f1b', '--pp', '2', '--microbatches', '2', '--uniform',
                                                     'f=1,b=1.1,w=0.9,comm=0.05']).text);
  await page.waitForFunction((makespan) => timelines[0].run.makespan === makespan, Math.round(seconds * 1e9));
  await page.fill('#csv', '0F0,0F1,0B0,0B1\n1F0,1B1,1B0,1F1\n');
  await page.locator('#refusal').waitFor();
  assert.match(await page.textContent('#refusal p'), /^schedule\.csv: deadlock/);
  assert.deepEqual(await page.$$eval('#refusal li', (all) => all.map((each) => each.textContent)),
                   ['B(stage 1, mb 1) at row 2, cell 2', 'F(stage 1, mb 1) at row 2, cell 4', 'B(stage 1, mb 1) at row 2, cell 2']);
  await page.fill('#csv', '0F0,<img src=x>\n1F0\n');
  await eventually(async () => assert.match(await page.textContent('#refusal'), /schedule\.csv: row 1, cell 2.*<img src=x>/));
  assert.equal(await page.locator('#refusal img').count(), 0);
}));

test('all controls have names and are reachable with the keyboard', () => opened(small, {}, async (page) => {
  await ready(page);
  const names = await page.$$eval('#controls :is(input, select, textarea, button)', (all) => all.filter((each) => each.checkVisibility()).map(
    (each) => each.labels?.[0]?.textContent || each.getAttribute('aria-label') || (each.matches('button') && each.textContent) || ''));
  assert.equal(names.length, 17, names.join());  // model, schedule, 6 fields with sliders, cap, keep, reset
  assert.deepEqual(names.filter((name) => !name), []);
  assert.equal(new Set(names).size, names.length, 'names differ');
  await page.locator('#controls > details > summary').focus();
  const reached = new Set();
  for (let i = 0; i < names.length + 1; ++i) {
    await page.keyboard.press('Tab');
    reached.add(await page.evaluate(() => {
      const each = document.activeElement;
      return each.labels?.[0]?.textContent || each.getAttribute('aria-label') || each.textContent;
    }));
  }
  for (const name of names) assert.ok(reached.has(name), name);
}));

test('the page fits windows of 320 to 2560 px in both themes', async () => {
  for (const width of [320, 390, 768, 1100, 1600, 2560]) {
    for (const colorScheme of ['light', 'dark']) {
      await opened(small, {viewport: {width, height: 900}, colorScheme}, async (page) => {
        await ready(page);
        await page.evaluate(() => { byId('own').open = true; });
        await settled(page);
        assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${width} px`);
        const cut = await page.$$eval('#controls *', (all) => all.filter(
          (each) => !each.matches('textarea, input, option') && each.clientWidth > 0 && each.scrollWidth > each.clientWidth + 1).map((each) => each.outerHTML));
        assert.deepEqual(cut, []);
      });
    }
  }
});

test('a page is smaller than 3 MB', () => {
  assert.ok(sizeOf(small) < 3e6, `${sizeOf(small)} bytes`);
  console.log(`        ${(sizeOf(small) / 1e6).toFixed(2)} MB, of which the engine ${(bytes.length / 1e6).toFixed(2)} MB before compression`);
});

if (process.env.SLUICE_TEST_SCOPE !== 'small') {
  test('time per frame', async () => {
    const big = report('--schedule', 'zb-h1', '--pp', '8', '--microbatches', '420', '--uniform', 'f=1,b=1.1,w=0.9,comm=0.05', '--live');
    await opened(big, {}, async (page) => {
      await ready(page);
      const measured = await page.evaluate(async () => {
        const out = {};
        const field = byId('knob-w');
        const quantiles = (values) => {
          const sorted = [...values].sort((a, b) => a - b);
          const at = (q) => sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))].toFixed(1);
          return `median ${at(0.5)}, p95 ${at(0.95)}, max ${sorted.at(-1).toFixed(1)} ms`;
        };
        for (const microbatches of [420, 100]) {
          byId('knob-microbatches').value = microbatches;
          byId('knob-microbatches').dispatchEvent(new Event('input'));
          for (let i = 0; i < 150; ++i) {
            field.value = 0.5 + i / 300;
            field.dispatchEvent(new Event('input'));
            await new Promise(requestAnimationFrame);
            if (i === 20) live.frames.length = 0;  // the script is optimized by now
          }
          const {kind} = timelines[0].run;
          out[`${kind.filter((each) => each < 12).length} compute ops, ${kind.length} with transfers`] =
            `simulation ${quantiles(live.frames.map(({simulate}) => simulate))}; drawing ${quantiles(live.frames.map(({draw}) => draw))}; both ${quantiles(live.frames.map(({simulate, draw}) => simulate + draw))}`;
        }
        return out;
      });
      for (const [name, text] of Object.entries(measured)) console.log(`        ${name}: ${text}`);
    });
  });
}

await runAll();
