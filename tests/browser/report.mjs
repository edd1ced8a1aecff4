// Tests of the HTML report in a browser.

import assert from 'node:assert/strict';
import {readFileSync} from 'node:fs';
import {colourAt, command, eventually, opened, placeOf, report, runAll, runsDespite, settled, sizeOf, source, test, write} from './harness.mjs';

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
  const found = async (text) => {
    await page.fill('#search', text);
    return page.textContent('#found');
  };
  // The example that the page shows, which names one op, and other separators.
  const example = await page.getAttribute('#search', 'placeholder');
  assert.ok(example.includes(','), example);
  assert.equal(await found(example), '1 op', example);
  for (const text of ['F3,mb 3,stage 1,rank 1', 'F3; rank 1', ' F3 , rank: 1, ', 'f3 rank=1', 'F3 mb3 rank1'])
    assert.equal(await found(text), '1 op', text);
  assert.equal(await found('F3, mb 3, stage 2, rank 1'), '0 ops');
  assert.equal(await found(','), '');
  // The names in the legend: 8 microbatches on 4 ranks, with 3 pairs of ranks that exchange them in both directions.
  for (const [text, count] of [['forward', 32], ['F', 32], ['Backward, rank 0', 8], ['optimizer', 4], ['transfers', 48],
                               ['send F', 24], ['communication', 48], ['C', 48], ['weight  gradient', 0]])
    assert.equal(await found(text), `${count} ops`, text);
  assert.equal(await found('nonsense'), 'unknown term: nonsense');
  assert.equal(await found('F3, nonsense, rank 1'), 'unknown term: nonsense');
  assert.equal(await found('rank 1x'), 'unknown term: rank');
  await page.fill('#search', '');
  await settled(page);
  assert.equal(await colourAt(page, 0, 0, forwardAt(0, 4) + 0.12), kForward);
}));

test('chunks are shades, also in averages, and can be searched', async () => {
  // V schedule: rank 0 has the stages 0 and 7 of 8. Its B of chunk 0 ends the run.
  const flags = ['--schedule', 'zb-v', '--pp', '4', '--microbatches', '8', '--uniform', 'f=1,b=1,w=1'];
  const mixed = (hex, white) => '#' + [1, 3, 5].map((at) => {
    const value = parseInt(hex.slice(at, at + 2), 16);
    return Math.round(value + (255 - value) * white).toString(16).padStart(2, '0');
  }).join('');
  for (const [colorScheme, forward] of [['light', kForward], ['dark', '#6152e6']]) {
    await opened(report(...flags), {colorScheme}, async (page) => {
      const times = await page.evaluate(() => {
        const {run} = timelines[0];
        const first = (stage) => run.stage.findIndex((each, i) => each === stage && run.kind[i] === 0);
        return [0, 7].map((stage) => run.start[first(stage)] / 1e9 + 0.12);
      });
      assert.equal(await colourAt(page, 0, 0, times[0]), forward);
      assert.equal(await colourAt(page, 0, 0, times[1]), mixed(forward, 0.5));
      assert.ok((await page.textContent('#legend')).includes('chunk 0 to 1'));
      // Half of the F, B, W of each rank.
      await page.fill('#search', 'F chunk 1 rank 0');
      assert.equal(await page.textContent('#found'), '8 ops');
      await page.fill('#search', 'F chunk 2');
      assert.equal(await page.textContent('#found'), '0 ops');
      // Labels have the contrast of WCAG 2.2, level AA, on every shade.
      assert.ok(await page.evaluate(() => {
        const linear = (v) => v <= 10 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4;
        const luminance = (c) => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);
        return colours.css.every((css, ink) => {
          const [a, b] = [luminance(css.match(/\d+/g).map(Number)), luminance(rgbOf(colours.label[ink]))].sort((p, q) => q - p);
          return (a + 0.05) / (b + 0.05) >= 4.5;
        });
      }));
    });
  }
  // Ops of 0.1 px: columns have all shades, each as high as its fraction of time.
  const many = report('--schedule', 'interleaved-1f1b', '--pp', '2', '--vpp', '2', '--microbatches', '2000', '--uniform', 'f=1,b=1,w=1');
  await opened(many, {}, async (page) => {
    const heights = await page.evaluate(() => {
      const timeline = timelines[0];
      const row = timeline.rows[0];
      const count = {};
      const {data} = timeline.surface.context.getImageData(Math.floor(view.x(view.end / 2)), row.y, 1, row.height);
      for (let i = 0; i < data.length; i += 4) {
        const name = '#' + [...data.slice(i, i + 3)].map((value) => value.toString(16).padStart(2, '0')).join('');
        count[name] = (count[name] ?? 0) + 1;
      }
      return count;
    });
    // Of 30 pixels, F of either chunk has a sixth and B a third.
    for (const [colour, pixels] of [[kForward, 5], [mixed(kForward, 0.5), 5], [kBackward, 10], [mixed(kBackward, 0.5), 10]])
      assert.ok(Math.abs(heights[colour] - pixels) <= 2, JSON.stringify(heights));
  });
  // Without chunks, slices are shades.
  const slices = report('--schedule', 'seq1f1b', '--pp', '2', '--microbatches', '3', '--slices', '2', '--uniform', 'f=1,b=1,w=1');
  await opened(slices, {}, async (page) => {
    const legend = await page.textContent('#legend');
    assert.ok(legend.includes('slice 0 to 1') && !legend.includes('chunk'), legend);
    assert.equal(await colourAt(page, 0, 0, 0.06), kForward);
    assert.equal(await colourAt(page, 0, 0, 0.56), mixed(kForward, 0.5));
  });
  await opened(small, {}, async (page) => assert.ok(!/chunk|slice/.test(await page.textContent('#legend'))));
});

test('joint blocks are found by their labels', async () => {
  const path = report('--schedule', 'dualpipe', '--pp', '4', '--microbatches', '10', '--uniform', 'f=1,b=1,w=1,fb=2.5');
  await opened(path, {}, async (page) => {
    const label = await page.evaluate(() => {
      const {run} = timelines[0];
      return labelOf(run, run.partnerOf.findIndex((partner) => partner >= 0));
    });
    assert.match(label, /^F\d+\+B\d+$/);
    await page.fill('#search', label);
    assert.match(await page.textContent('#found'), /^[1-9]\d* ops?$/);
  });
});

test('the summary and the timeline fit one screen', async () => {
  const llama = source + 'examples/llama3-8b-zbv-h100.json';
  const uniform = ['--microbatches', '64', '--uniform', 'f=1,b=1,w=1'];
  const cases = [  // paths, and whether all lanes are visible without scrolling
    [report(llama), true],
    [report(llama, '--compare-with', 'interleaved-1f1b'), true],
    [report(source + 'examples/gpt3-175b-a100.json'), false],
    [report('--schedule', '1f1b', '--pp', '8', ...uniform, '--compare-with', 'zb-h1'), true],
    [report('--schedule', '1f1b', '--pp', '64', ...uniform), false],
    [report('--schedule', '1f1b', '--pp', '64', ...uniform, '--compare-with', 'zb-h1'), false],
  ];
  for (const [path, all] of cases) {
    await opened(path, {}, async (page) => {
      const title = await page.title();
      const size = page.viewportSize();
      assert.equal(await page.evaluate(() => scrollY), 0);
      const boxes = await page.$$eval('.cards, .lanes', (every) => every.map((each) => {
        const {top, right, bottom, left, height} = each.getBoundingClientRect();
        return {top, right, bottom, left, height, scrolls: each.scrollHeight > each.clientHeight};
      }));
      for (const box of boxes) {
        const text = `${title}: ${JSON.stringify(box)}`;
        assert.ok(box.top >= 0 && box.bottom <= size.height && box.left >= 0 && box.right <= size.width, text);
        assert.ok(box.height >= 80, text);
        if (all) assert.ok(!box.scrolls, text);
      }
      const top = (selector) => page.locator(selector).first().evaluate((each) => each.getBoundingClientRect().top);
      assert.ok(await top('pre.command') > await top('.lanes'), 'the command is below the timeline');
    });
  }
});

test('the explanations of a comparison open with the keyboard, and are printed', async () => {
  const two = report('--schedule', '1f1b', '--pp', '4', '--microbatches', '8', '--uniform', 'f=1,b=1,w=1', '--compare-with', 'zb-h1');
  for (const javaScriptEnabled of [true, false]) {
    await opened(two, {javaScriptEnabled}, async (page) => {
      const text = page.getByText('idle fraction of all rank time').first();
      assert.ok(await text.isHidden());
      await page.emulateMedia({media: 'print'});
      assert.ok(await text.isVisible());
      await page.emulateMedia({media: 'screen'});
      await page.locator('.about summary').press('Enter');
      await text.waitFor();
    });
  }
});

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
  const named = write('x'.repeat(150) + '.json', JSON.stringify({
    schema: 'sluice.schedule/1', ranks: 2, stages: 2, microbatches: 1, placement: [[0, 1]],
    shapes: [{sequences: 1, slice_lengths: [1]}], order: [['0F0', '0B0'], ['1F0', '1B0']],
  }));
  const long = report('--schedule', named, '--pp', '2', '--microbatches', '1', '--uniform', 'f=1,b=1,w=1', '--compare-with', 'gpipe');
  for (const width of [360, 390, 800, 3840]) {
    for (const path of [small, llama, long]) {
      await opened(path, {viewport: {width, height: 844}}, async (page) => {
        const [content, room] = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
        assert.ok(content <= room, `${width}: ${content} > ${room}`);
        // The summary is not cut, and of tables that scroll the first column stays visible.
        const summary = await page.$$eval('section:first-of-type, section:first-of-type *', (all) => all.filter(
          (each) => each.clientWidth > 0 && each.scrollWidth > each.clientWidth + 1).map((each) => each.outerHTML));
        assert.deepEqual(summary, []);
        const moved = await page.$$eval('.scroll', (all) => all.flatMap((box) => {
          box.scrollLeft = box.scrollWidth;
          const {left, right} = box.getBoundingClientRect();
          const cells = [...box.querySelectorAll('tr > :first-child')].map((cell) => cell.getBoundingClientRect());
          return cells.filter((cell) => cell.left < left || cell.right > right);
        }));
        assert.deepEqual(moved, []);
        const first = page.locator('table.ranks tbody th').first();
        await first.scrollIntoViewIfNeeded();
        assert.ok(await first.evaluate((cell) => {
          const {left, top, width, height} = cell.getBoundingClientRect();
          return document.elementFromPoint(left + width / 2, top + height / 2) === cell;
        }), 'no other column covers the first');
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
    const card = await page.$eval('.compared > div', (each) => each.innerText.split(/\s*\n\s*/));
    assert.deepEqual(card.join(' '), 'Iteration A 33 s B 27 s -18.2 %');
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

test('dispatch and combine have a lane below their rank', async () => {
  const woven = ['--model', 'deepseek-v3', '--cluster', 'h800', '--pp', '16', '--ep', '64', '--gpus', '1024', '--seq-length', '4096',
                 '--mbs', '1', '--gbs', '4096', '--mtp-num-layers', '0', '--schedule', 'dualpipe'];
  const path = report(...woven);
  const trace = write('woven.json', '');
  command('simulate', ...woven, '--trace', trace);
  const rank = 3;
  const expected = JSON.parse(readFileSync(trace, 'utf8')).traceEvents.filter(
    (each) => each.cat === 'part' && each.pid === rank + 1 && each.tid === 100000);
  assert.ok(expected.length > 100);
  await opened(path, {}, async (page) => {
    // The parts of the trace, in time order.
    const drawn = await page.evaluate((r) => {
      const {run} = timelines[0];
      const lane = run.lanes.find((each) => each.kind === 'parts' && each.rank === r);
      const rows = [];
      for (let i = lane.first; i < lane.last; ++i) {
        rows.push({name: describeOp(run, i).title, start: run.start[i], end: run.end[i], label: labelOf(run, i),
                   hidden: run.parts.hidden[run.parts.at[i - run.parts.first]]});
      }
      return rows;
    }, rank);
    assert.deepEqual(drawn.map(({name, start, end}) => [name, start, end]), expected.map(
      (each) => [each.name, Math.round(each.ts * 1e3), Math.round((each.ts + each.dur) * 1e3)]));
    // One below each compute lane.
    const rows = await page.evaluate(() => timelines[0].rows.map(({lane}) => [lane.kind, lane.rank]));
    assert.deepEqual(rows, Array.from({length: 16}, (_, r) => [['compute', r], ['parts', r]]).flat());
    const legend = await page.textContent('#legend');
    assert.ok(legend.includes('dispatch') && legend.includes('combine'), legend);
    // The rank's first block, in its colours, with its tooltip.
    const block = drawn.findIndex(({hidden, start, end}) => hidden > 0 && end - start > 1e6);
    const {start, end, name, hidden} = drawn[block];
    await page.evaluate(([t0, t1]) => view.show(t0, t1), [start - 4 * (end - start), end + 4 * (end - start)]);
    await settled(page);
    const colours = {d: '#9b59b6', c: '#d6a2e8'};
    assert.equal(await colourAt(page, 0, rank, (0.8 * start + 0.2 * end) / 1e9, 0.9, 'parts'), colours[name[0]]);
    await page.mouse.move(...await placeOf(page, 0, rank, (start + end) / 2e9, 'parts'));
    await eventually(async () => {
      const text = await page.locator('#card').innerText();
      assert.ok(text.startsWith(name), text);
      const percent = (100 * hidden / (end - start)).toFixed(1);
      assert.match(text, new RegExp(`layer\\s+\\d+[^]*hidden\\s+[^]*\\(${percent} %\\)[^]*Within F\\d+\\+B\\d+ on rank ${rank}\\.`));
    });
    // The keyboard reaches them; Enter selects their op.
    const live = (pattern) => eventually(async () => assert.match(await page.locator('#live').textContent(), pattern));
    await page.click('#zoom-all');
    await page.locator('.lanes').focus();
    await page.keyboard.press('ArrowRight');
    await live(/^F0, forward\. rank 0, /);
    await page.keyboard.press('ArrowDown');
    await live(/^(dispatch|combine)\(.\)\. rank 0, stage .*Within /);
    await page.keyboard.press('ArrowRight');
    await live(/^(dispatch|combine)\(.\)\. rank 0, /);
    await page.keyboard.press('Enter');
    await live(/, (forward|backward|input gradient|joint block)\. rank 0, /);
    await page.keyboard.press('ArrowDown');
    await page.keyboard.press('ArrowDown');
    await live(/^F\d+, forward\. rank 1, /);
    // Searches: 64 microbatches with 58 layers of experts, forward and backward; one F0 per rank, without its parts.
    for (const [text, count] of [['dispatch', 2 * 64 * 58], ['combine', 2 * 64 * 58], ['dispatch, rank 1 mb 0', null], ['F0 rank 0', 1]]) {
      await page.fill('#search', text);
      const found = Number((await page.textContent('#found')).replace(/\D/g, ''));
      if (count === null) assert.ok(found > 0 && found < 20, `${text}: ${found}`);
      else assert.equal(found, count, text);
    }
    await page.fill('#search', '');
    // The checkbox removes the lanes.
    await page.uncheck('#show-parts');
    assert.ok(await page.evaluate(() => timelines[0].rows.every(({lane}) => lane.kind === 'compute')));
    assert.match(await page.textContent('.cards'), /Dispatch and combine\d+ % hidden/);
  });
  await opened(small, {}, async (page) => {
    assert.ok(await page.locator('#show-parts').isHidden());
    assert.ok(!/dispatch/.test(await page.textContent('#legend')));
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
  await settled(page);
  assert.ok(await page.locator('#card').isVisible(), 'it stays when the finger is lifted');
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
