// Tests of the HTML report in a browser.

import assert from 'node:assert/strict';
import {readFileSync} from 'node:fs';
import {colourAt, eventually, opened, placeOf, report, runAll, runsDespite, settled, sizeOf, source, test, write} from './harness.mjs';

const small = report('--schedule', '1f1b', '--pp', '4', '--microbatches', '8', '--uniform', 'f=1,b=1,w=1');
const kForward = '#332288';
const kBackward = '#d55e00';
const kIdle = '#f2f2f2';

// 1F1B with p = 4 ranks, m = 8, f = 1 s and x = b + w = 2 s. The last rank is not idle between its ops: F(j) starts at 3 + 3 j,
// B(j) at 4 + 3 j. B(j) starts x later per preceding rank: 4 + 3 j + 2 (3 - r). F(j) starts at r + j while the pipeline fills
// (j < 4 - r), then directly before B(j - (3 - r)), at 3 + 3 j - (3 - r).
const forwardAt = (rank, j) => j < 4 - rank ? rank + j : 3 + 3 * j - (3 - rank);
const backwardAt = (rank, j) => 4 + 3 * j + 2 * (3 - rank);

test('summary, tables, command and scenario are correct', () => opened(small, {}, async (page) => {
  const figures = await page.$$eval('.cards > div', (all) => Object.fromEntries(
    all.map((each) => [each.querySelector('dt').textContent, each.querySelector('strong').textContent])));
  assert.equal(figures.Iteration, '33 s');    // (m + p - 1)(f + x)
  assert.equal(figures.Bubble, '27.3 %');     // 9 of 33
  assert.equal(figures['Over ideal'], '37.5 %');  // 33 / 24 - 1
  assert.match(await page.textContent('pre.command'), /^sluice simulate --schedule 1f1b .* --uniform f=1,b=1,w=1 --report '/);
  assert.deepEqual(JSON.parse(await page.textContent('pre.scenario')).parallelism, {pp: 4});
  const cells = (table) => page.$$eval(`table.${table} tbody tr`, (rows) => rows.map((row) => [...row.cells].map((c) => c.textContent)));
  // rank, stages, busy m (f + x), fraction, min(p - r, m) in flight, first start r, last end 33 - 2 r
  assert.deepEqual(await cells('ranks'), [0, 1, 2, 3].map(
    (r) => [String(r), String(r), '24 s', '72.7 %', String(4 - r), r === 0 ? '0' : `${r} s`, `${33 - 2 * r} s`]));
  // Idle time is 9 s: 6 - r before the first B (warm-up), and the remaining 3 + r after the last F (drain).
  const idle = await cells('idle');
  assert.deepEqual(idle.map((row) => row.slice(2).map((text) => text.split(' (')[0])),
                   [0, 1, 2, 3].map((r) => ['9 s', `${6 - r} s`, `${3 + r} s`]));
}));

test('every op is at the time of the closed form, in its colour', () => opened(small, {}, async (page) => {
  for (let rank = 0; rank < 4; ++rank) {
    for (let j = 0; j < 8; ++j) {  // next to the labels, which are in the middle
      for (const part of [0.12, 0.88]) {
        assert.equal(await colourAt(page, 0, rank, forwardAt(rank, j) + part), kForward, `F${j} on rank ${rank}`);
        assert.equal(await colourAt(page, 0, rank, backwardAt(rank, j) + 2 * part), kBackward, `B${j} on rank ${rank}`);
      }
    }
    // Between the last warm-up F and the first B.
    if (rank < 3) assert.equal(await colourAt(page, 0, rank, backwardAt(rank, 0) - 0.5), kIdle);
  }
}));

test('tables sort by column', () => opened(small, {}, async (page) => {
  const head = page.locator('table.ranks thead th', {hasText: 'last end'});
  await head.getByRole('button').click();
  const order = () => page.$$eval('table.ranks tbody th', (all) => all.map((each) => each.textContent).join(''));
  assert.equal(await head.getAttribute('aria-sort'), 'ascending');
  assert.equal(await order(), '3210');
  await head.getByRole('button').press('Enter');
  assert.equal(await head.getAttribute('aria-sort'), 'descending');
  assert.equal(await order(), '0123');
}));

test('the tooltip shows what an op waited for, and causes of idle time', () => opened(small, {}, async (page) => {
  const card = page.locator('#card');
  const cardMatches = (...patterns) => eventually(async () => {
    const text = await card.innerText();
    for (const pattern of patterns) assert.match(text, pattern);
  });
  await page.mouse.move(...await placeOf(page, 0, 1, backwardAt(1, 0) + 1));
  // Rank 1 is idle from 4 until its B0 starts at 8, when B0 of rank 2 ends.
  await cardMatches(/^B0, backward/, /8 s to 10 s/, /Waited 4 s for B0 on rank 2 \(warm-up\)\./, /slack\s+0, on/);
  await page.mouse.move(...await placeOf(page, 0, 0, 6));
  await cardMatches(/^Idle for 6 s[^]*4 s to 10 s[^]*warm-up[^]*next op\s+B0[^]*Waits 6 s for B0 on rank 1 \(warm-up\)/);
  await page.mouse.move(...await placeOf(page, 0, 2, forwardAt(2, 1) + 0.5));
  await cardMatches(/^F1, forward[^]*Did not wait\. Last dependency: /);
  await page.mouse.move(5, 5);
  await card.waitFor({state: 'hidden'});
}));

test('all ops are reachable with the keyboard', () => opened(small, {}, async (page) => {
  const liveMatches = (pattern) => eventually(async () => assert.match(await page.locator('#live').textContent(), pattern));
  await page.locator('.lanes').focus();
  await page.keyboard.press('ArrowRight');
  await liveMatches(/^F0, forward\. rank 0, /);
  await page.keyboard.press('ArrowRight');
  await liveMatches(/^F1, forward\. rank 0, stage 0, microbatch 1, time 1 s to 2 s, duration 1 s, slack /);
  await page.keyboard.press('ArrowDown');
  await liveMatches(/^F0, forward\. rank 1, /);
  await page.locator('#card').waitFor();
  await page.keyboard.press('Enter');  // to the sender of its transfer
  await liveMatches(/^F0, forward\. rank 0, /);
  await page.keyboard.press('+');
  await page.waitForFunction(() => view.t1 - view.t0 === 22e9);
  const before = await page.evaluate(() => view.t0);
  await page.keyboard.press('Shift+ArrowRight');
  await page.waitForFunction((t0) => view.t0 > t0 && view.t1 - view.t0 === 22e9, before);
  await page.keyboard.press('0');
  await page.waitForFunction(() => view.t1 - view.t0 === 33e9);
  await page.keyboard.press('Escape');
  await page.locator('#card').waitFor({state: 'hidden'});
  // Tab moves the focus to the next control.
  await page.keyboard.press('Tab');
  await page.waitForFunction(() => document.activeElement.matches('.scroll, button, a'));
}));

test('wheel, drag and buttons zoom and move', () => opened(small, {}, async (page) => {
  const window = () => page.evaluate(() => [view.t0 / 1e9, view.t1 / 1e9]);
  const [x, y] = await placeOf(page, 0, 1, 11);
  await page.mouse.move(x, y);
  await page.mouse.wheel(0, -200);
  await page.waitForFunction(() => view.t1 - view.t0 < 33e9 * 0.8);
  const [t0, t1] = await window();
  assert.ok(Math.abs((11 - t0) / (t1 - t0) - 11 / 33) < 0.01, 'the time under the pointer is kept');
  await page.mouse.down();
  await page.mouse.move(x + 100, y, {steps: 4});
  await page.mouse.up();
  await page.waitForFunction((before) => view.t0 / 1e9 < before, t0);
  await page.click('#zoom-all');
  await eventually(async () => assert.deepEqual(await window(), [0, 33]));
  await page.click('#zoom-in');
  await eventually(async () => assert.deepEqual(await window(), [8.25, 24.75]));
}));

test('a search finds ops and dims the others', () => opened(small, {}, async (page) => {
  await page.fill('#search', 'F3');
  await settled(page);
  assert.equal(await page.textContent('#found'), '4 ops');
  assert.equal(await colourAt(page, 0, 0, forwardAt(0, 3) + 0.12), kForward);
  assert.notEqual(await colourAt(page, 0, 0, forwardAt(0, 4) + 0.12), kForward);
  await page.press('#search', 'Enter');
  assert.match(await page.textContent('#live'), /^F3, forward\. rank 0/);
  await page.fill('#search', 'mb 3 stage 2');  // F and B, and both transfers that leave the stage
  assert.equal(await page.textContent('#found'), '4 ops');
  await page.fill('#search', 'nonsense');
  assert.match(await page.textContent('#found'), /unknown term/);
  await page.fill('#search', '');
  await settled(page);
  assert.equal(await colourAt(page, 0, 0, forwardAt(0, 4) + 0.12), kForward);
}));

test('the critical path is outlined on request', () => opened(small, {}, async (page) => {
  // B7 of rank 0 ends the run.
  assert.equal(await colourAt(page, 0, 0, backwardAt(0, 7) + 0.3, 0.03), kBackward);
  await page.check('#show-path');
  await settled(page);
  assert.equal(await colourAt(page, 0, 0, backwardAt(0, 7) + 0.3, 0.03), '#000000');
}));

test('the theme follows the system and the button', () => opened(small, {colorScheme: 'dark'}, async (page) => {
  const pageColour = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const dark = await pageColour();
  assert.notEqual(dark, 'rgb(255, 255, 255)');
  assert.equal(await colourAt(page, 0, 0, 0.12), '#6152e6');
  await page.getByRole('button', {name: 'Light', exact: true}).click();
  await settled(page);
  assert.equal(await pageColour(), 'rgb(255, 255, 255)');
  assert.equal(await colourAt(page, 0, 0, 0.12), kForward);
}));

test('text has enough contrast in both themes', () => opened(small, {}, async (page) => {
  for (const theme of ['light', 'dark']) {
    const worst = await page.evaluate((name) => {
      document.documentElement.dataset.theme = name;
      const style = getComputedStyle(document.documentElement);
      const luminance = (variable) => {
        const linear = rgbOf(style.getPropertyValue(variable).trim()).map(
          (v) => v <= 10 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4);
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
      };
      let least = 21;
      for (const text of ['--text', '--soft', '--accent', '--bad']) {
        for (const ground of ['--page', '--panel', '--card']) {
          const [a, b] = [luminance(text), luminance(ground)].sort((p, q) => q - p);
          least = Math.min(least, (a + 0.05) / (b + 0.05));
        }
      }
      return least;
    }, theme);
    assert.ok(worst >= 4.5, `${theme}: ${worst}`);  // WCAG 2.2, level AA
  }
}));

test('the page never scrolls sideways', async () => {
  const llama = report(source + 'examples/llama3-8b-zbv-h100.json', '--compare-with', 'interleaved-1f1b');
  for (const width of [360, 390, 800, 3840]) {
    for (const path of [small, llama]) {
      await opened(path, {viewport: {width, height: 844}}, async (page) => {
        const [content, room] = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
        assert.ok(content <= room, `${width}: ${content} > ${room}`);
        const [x, y] = await placeOf(page, 0, 1, (await page.evaluate(() => view.end)) / 2e9);
        await page.mouse.move(x, y);
        await page.locator('#card').waitFor();
        const box = await page.locator('#card').boundingBox();
        assert.ok(box.x >= 0 && box.x + box.width <= width, 'the tooltip is within the window');
      });
    }
  }
});

test('memory curves show the capacity, the rank with the highest peak and bytes per class', async () => {
  const llama = report(source + 'examples/llama3-8b-zbv-h100.json');
  await opened(llama, {}, async (page) => {
    const {worst, peak, capacity, rows} = await page.evaluate(() => ({
      worst: curves[0].run.memory.worst, peak: Math.max(...curves[0].run.memory.peak), capacity: curves[0].run.capacity,
      rows: [...document.querySelectorAll('table.ranks tbody tr')].map((row) => Number(row.cells[7].dataset.v)),
    }));
    assert.equal(peak, Math.max(...rows));
    assert.equal(worst, rows.indexOf(peak));
    assert.ok(capacity > peak && capacity < 80 * 2 ** 30);
    assert.equal(await page.locator('.curves select, .plot-head select').inputValue(), String(worst));
    await page.locator('.curves').hover({position: {x: 700, y: 100}});
    await eventually(async () => {
      const text = await page.locator('#card').innerText();
      assert.match(text, new RegExp(`^Rank ${worst} at `));
      for (const name of ['weights', 'gradients', 'optimizer', 'activations', 'keys, values', 'total', 'of capacity'])
        assert.ok(text.includes(name), name);
    });
    await page.locator('.plot-head select').selectOption('0');
    await page.locator('.curves').hover({position: {x: 701, y: 100}});
    await eventually(async () => assert.match(await page.locator('#card').innerText(), /^Rank 0 at /));
    // The capacity line crosses the plot at the height given by the scale.
    const red = await page.evaluate(() => {
      const curve = curves[0];
      const y = Math.round(curve.y(curve.run.capacity));
      const {data} = curve.surface.context.getImageData(100, y - 1, 60, 3);
      let count = 0;
      for (let i = 0; i < data.length; i += 4) if (data[i] > 150 && data[i + 1] < 120) ++count;
      return count;
    });
    assert.ok(red > 30, `${red} pixels`);
  });
});

test('a second run has the same time axis', async () => {
  // ZB-H1 with f = b = w = 1: m (f + b + w) + (p - 1) max(f + b - w, b, f) = 27 s.
  const two = report('--schedule', '1f1b', '--pp', '4', '--microbatches', '8', '--uniform', 'f=1,b=1,w=1',
                     '--compare-with', 'zb-h1');
  await opened(two, {}, async (page) => {
    const row = await page.$eval('table.headline tbody tr', (each) => [...each.cells].map((c) => c.firstChild.textContent));
    assert.deepEqual(row, ['Iteration', '33 s', '27 s', '-18.2 %']);
    const ends = await page.evaluate(() => timelines.map((timeline) => [timeline.run.makespan, timeline.canvas.width]));
    assert.deepEqual(ends.map(([makespan]) => makespan), [33e9, 27e9]);
    assert.equal(ends[0][1], ends[1][1]);
    assert.equal(await colourAt(page, 1, 0, 0.12), kForward);      // F0 starts both
    assert.equal(await colourAt(page, 1, 0, 26.2), '#00735c');     // rank 0 ends with a W
    assert.equal(await colourAt(page, 1, 0, 30), '#ffffff');       // blank after the end, while run A continues
    assert.equal(await colourAt(page, 0, 0, backwardAt(0, 7) + 0.3), kBackward);
    await page.locator('.lanes').first().focus();
    await page.keyboard.press('+');
    await settled(page);
    assert.equal(await page.locator('pre.scenario').count(), 2);
  });
});

test('transfers and collectives have their own rows', async () => {
  await opened(report(source + 'examples/gpt3-175b-a100.json'), {}, async (page) => {
    const rows = () => page.evaluate(() => timelines[0].rows.map((row) => row.lane.kind));
    assert.deepEqual([...new Set(await rows())], ['compute']);
    await page.check('#show-links');
    await page.check('#show-collectives');
    assert.deepEqual(new Set(await rows()), new Set(['compute', 'link', 'collective']));
    assert.ok(await page.$eval('.lanes', (box) => box.scrollHeight > box.clientHeight), 'many rows scroll');
    await page.fill('#search', 'send B3 rank 1');
    await page.press('#search', 'Enter');
    assert.match(await page.textContent('#live'), /^send B3, transfer\. rank 1 to 0, [^]*bytes|^send B3, transfer\. rank 1 to 0/);
  });
});

test('user text cannot become markup', async () => {
  const evil = '</script></title><img src=x onerror="alert(1)"><script>alert(2)</script>';
  const model = {name: evil, num_layers: 4, hidden_size: 256, num_attention_heads: 4, vocab_size: 1000, max_position_embeddings: 256};
  const scenario = write('evil.json', JSON.stringify({schema: 'sluice.scenario/1', name: evil, model, cluster: 'dgx-h100',
    parallelism: {pp: 4}, batch: {microbatches: 8, sequence_length: 256}, schedule: '1f1b'}));
  await opened(report(scenario, '--compare-with', 'gpipe'), {}, async (page) => {
    assert.equal(await page.locator('img').count(), 0);
    assert.ok((await page.title()).startsWith(evil));
    assert.ok((await page.locator('pre.scenario').first().textContent()).includes(JSON.stringify(evil)));
  });
});

test('without scripts the page shows its text and a notice', () => opened(small, {javaScriptEnabled: false}, async (page) => {
  assert.ok(await page.getByText('require JavaScript').isVisible());
  assert.ok(await page.locator('table.idle').isVisible());
  assert.ok(await page.locator('.toolbar').isHidden());
  assert.ok((await page.textContent('.cards')).includes('33 s'));
}));

test('a modified script does not run', async () => {
  const text = readFileSync(small, 'utf8');
  const changed = text.replace("'use strict';", "'use strict'; ");
  assert.notEqual(changed, text);
  assert.equal(await runsDespite(write('changed.html', changed), /Content Security Policy/), false);
});

test('the page reports a missing browser feature', () => opened(small, {
  broken: true, init: () => { delete globalThis.DecompressionStream; },
}, async (page) => {
  assert.match(await page.textContent('#trouble'), /no DecompressionStream/);
  assert.ok(await page.locator('table.ranks').isVisible());
}));

test('touch: tap, drag and pinch', () => opened(small, {hasTouch: true, viewport: {width: 390, height: 844}}, async (page) => {
  const [x, y] = await placeOf(page, 0, 1, backwardAt(1, 0) + 1);
  await page.touchscreen.tap(x, y);
  await eventually(async () => assert.match(await page.locator('#card').innerText(), /^B0, backward/));
  const session = await page.context().newCDPSession(page);
  const touch = (type, ...xs) => session.send('Input.dispatchTouchEvent',
                                              {type, touchPoints: xs.map((at, id) => ({x: at, y, id}))});
  await touch('touchStart', 160, 200);
  for (let i = 1; i <= 8; ++i) await touch('touchMove', 160 - 8 * i, 200 + 8 * i);
  await touch('touchEnd');
  await page.waitForFunction(() => view.t1 - view.t0 < 33e9 / 2);  // from 40 to 168 pixels apart
  await settled(page);
  const t0 = await page.evaluate(() => view.t0);
  await touch('touchStart', 250);
  for (let i = 1; i <= 8; ++i) await touch('touchMove', 250 - 10 * i);
  await touch('touchEnd');
  await page.waitForFunction((before) => view.t0 > before, t0);
}));

test('print omits the controls', () => opened(small, {}, async (page) => {
  await page.emulateMedia({media: 'print'});
  assert.ok(await page.locator('.toolbar').isHidden());
  assert.ok(await page.locator('table.ranks').isVisible());
}));

if (process.env.SLUICE_TEST_SCOPE !== 'small') {
  test('a million ops', async () => {
    // Compute 2 x 64 x 4096, transfers 2 x 63 x 4096, one optimizer step per rank.
    const path = report('--schedule', '1f1b', '--pp', '64', '--microbatches', '4096', '--uniform', 'f=1,b=1,w=1,comm=0.1');
    assert.ok(sizeOf(path) < 15e6, `${sizeOf(path)} bytes`);
    await opened(path, {}, async (page) => {
      assert.equal(await page.evaluate(() => timelines[0].run.n), 2 * 64 * 4096 + 2 * 63 * 4096 + 64);
      // A search zooms in until the op is visible: 30 of 1500 pixels for its 1 s.
      await page.fill('#search', 'F2000 rank 40');
      await page.press('#search', 'Enter');
      assert.match(await page.textContent('#live'), /^F2000, forward\. rank 40, /);
      assert.ok(await page.evaluate(() => view.t1 - view.t0) < 100e9);
      await page.fill('#search', '');
      await page.click('#zoom-all');
      const ready = await page.evaluate(() => Number(document.documentElement.dataset.ready));
      const work = await page.evaluate(async () => {
        const frame = () => new Promise(requestAnimationFrame);
        const run = async (steps, change) => {
          view.frames.length = 0;
          for (let i = 0; i < steps; ++i) {
            change(i);
            await frame();
          }
          await frame();
          const sorted = [...view.frames].sort((a, b) => a - b);
          const quantile = (q) => sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))].toFixed(1);
          return `median ${quantile(0.5)}, p95 ${quantile(0.95)}, max ${sorted.at(-1).toFixed(1)} ms over ${sorted.length} frames`;
        };
        const out = {};
        const span = () => view.t1 - view.t0;
        const zoomIn = () => view.zoom(view.t0 + span() * 0.3, 1.08);
        out['zoom in, before the script is optimized'] = await run(120, zoomIn);
        view.all();
        out['zoom in'] = await run(120, zoomIn);
        out['pan near'] = await run(120, () => view.move(span() * 0.05));
        out['zoom out'] = await run(120, () => view.zoom(view.t0 + span() * 0.6, 1 / 1.08));
        view.all();
        view.zoom(view.end / 2, 4);
        out['pan far'] = await run(120, (i) => view.move((i < 60 ? 1 : -1) * span() * 0.02));
        return out;
      });
      console.log(`        ${(sizeOf(path) / 1e6).toFixed(1)} MB, drawn ${ready} ms after opening; time per frame:`);
      for (const [name, text] of Object.entries(work)) console.log(`        ${name}: ${text}`);
    });
  });
}

await runAll();
