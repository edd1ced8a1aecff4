
// Paints pixels. Plots are painted into a buffer column by column, so that the cost of a frame depends on the window and
// not on the number of ops. Text and outlines are drawn on top.

// By class. The dark theme has the same hues, lightened where the contrast would be too low.
const kLightClasses = ['#332288', '#d55e00', '#ffd23f', '#00735c', '#66ccee', '#9b59b6', '#661100', '#9b59b6', '#d6a2e8'];
const kDarkClasses = ['#6152e6', '#e8700a', '#ffd23f', '#0a8f73', '#7fdcf7', '#b565d6', '#96321c', '#b565d6', '#e6c2f2'];

let colours = null;  // of the current theme

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
}

function rgbOf(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}
function packed([red, green, blue]) {
  return (255 << 24 | blue << 16 | green << 8 | red) >>> 0;  // ImageData is little-endian RGBA
}
function mixed(a, b, fraction) {
  return a.map((value, i) => Math.round(value + (b[i] - value) * fraction));
}

function chooseColours() {
  const style = getComputedStyle(document.documentElement);
  const css = (name) => style.getPropertyValue(name).trim();
  const dark = isDark();
  const idle = dark ? '#2b3138' : '#f2f2f2';
  const page = css('--page');
  const classes = dark ? kDarkClasses : kLightClasses;
  const hexes = classes.map(rgbOf);
  // Whether white text has more contrast than black text (WCAG 2.2, relative luminance).
  const linear = (v) => v <= 10.31 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4;
  const luminance = (c) => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);
  const white = (c) => 1.05 / (luminance(c) + 0.05) > (luminance(c) + 0.05) / 0.05;
  // By ink, see kShades.
  const lighter = (c, shade) => mixed(c, [255, 255, 255], 0.5 * shade / kShades);
  const shades = hexes.flatMap((c) => Array.from({length: 256}, (_, shade) => lighter(c, shade)));
  const inks = (colourOf) => Uint32Array.from(shades, (c) => packed(colourOf(c)));
  colours = {
    dark, page, text: css('--text'), soft: css('--soft'), line: css('--line'), accent: css('--accent'), bad: css('--bad'),
    idle: packed(rgbOf(idle)), edge: packed(rgbOf(page)), path: packed(rgbOf(dark ? '#ffffff' : '#000000')),
    fill: inks((c) => c), dim: inks((c) => mixed(c, rgbOf(idle), 0.8)),
    pattern: inks((c) => mixed(c, white(c) ? [255, 255, 255] : [0, 0, 0], 0.45)),
    label: shades.map((c) => white(c) ? '#ffffff' : '#000000'),
    css: shades.map((c) => `rgb(${c})`),
  };
}

// By class: whether a pixel is inked. Forward is plain.
const kPatterns = [
  null,
  (x, y) => (x + y) % 8 < 2,
  (x, y) => x % 6 < 2 && y % 6 < 2,
  (x, y) => (x - y & 7) < 2,
  (x) => x % 5 < 2,
  (x, y) => y % 5 < 1,
  (x, y) => (x + y) % 8 < 1 || (x - y & 7) < 1,
  (x) => x % 3 < 1,
  (x, y) => x % 4 < 1 && y % 4 < 1,
];

class Surface {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext('2d');
    this.image = null;
  }
  // Sizes in CSS pixels.
  resize(width, height) {
    const w = Math.max(1, Math.round(width * view.ratio));
    const h = Math.max(1, Math.round(height * view.ratio));
    if (this.canvas.width !== w || this.canvas.height !== h || !this.image) {
      this.canvas.width = w;
      this.canvas.height = h;
      this.canvas.style.width = width + 'px';
      this.canvas.style.height = height + 'px';
      this.image = this.context.createImageData(w, h);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    this.w = w;
    this.h = h;
  }
  clear() { this.pixels.fill(colours.edge); }
  fill(x0, x1, y0, y1, colour) {
    if (x1 - x0 < 8) {
      for (let y = y0; y < y1; ++y) for (let x = x0; x < x1; ++x) this.pixels[y * this.w + x] = colour;
      return;
    }
    for (let y = y0; y < y1; ++y) this.pixels.fill(colour, y * this.w + x0, y * this.w + x1);
  }
  ink(x0, x1, y0, y1, pattern, colour) {
    for (let y = y0; y < y1; ++y)
      for (let x = x0; x < x1; ++x) if (pattern(x, y)) this.pixels[y * this.w + x] = colour;
  }
  // Copies the buffer to the canvas. Afterwards the context draws in CSS pixels.
  put() {
    this.context.setTransform(1, 0, 0, 1, 0, 0);
    this.context.putImageData(this.image, 0, 0);
    this.context.setTransform(view.ratio, 0, 0, view.ratio, 0, 0);
  }
}

// Paints one lane between the device rows y0 and y1. `options`: patterns, path (outline the critical path), found (the ops
// that a search found, ascending, or null).
function paintLane(surface, run, lane, y0, y1, options) {
  const left = Math.round(view.gutter * view.ratio);
  const band = {
    surface, run, lane, y0, y1, left, width: surface.w - left, patterns: options.patterns,
    scale: (view.width - view.gutter) * view.ratio / (view.t1 - view.t0),  // px per ns
    wide: 5 * view.ratio,  // px from which an op is separated from the previous one
    base: options.found ? colours.dim : colours.fill,
  };
  paintOps(band);
  const plain = {...band, patterns: false};
  paintMarked(band, run.instants, (op, from, to) => paintOp(plain, op, left + from, left + to));
  if (options.found) {
    const bright = {...band, base: colours.fill};
    paintMarked(band, options.found, (op, from, to) => paintOp(bright, op, left + from, left + to));
  }
  if (!options.path) return;
  const thick = Math.max(1, Math.min(Math.round(2 * view.ratio), (y1 - y0) >> 2));
  paintMarked(band, run.criticalOps, (op, from, to) => {
    surface.fill(left + from, left + to, y0, y0 + thick, colours.path);
    surface.fill(left + from, left + to, y1 - thick, y1, colours.path);
    if (to - from < band.wide) return;
    surface.fill(left + from, left + from + thick, y0, y1, colours.path);
    surface.fill(left + to - thick, left + to, y0, y1, colours.path);
  });
}

// Paints the ops and idle times of a lane, column by column.
function paintOps(band) {
  const {surface, run, lane, y0, y1, left, width, scale, wide, base} = band;
  const {start, end} = run;
  const t0 = view.t0;
  const block = 8 * Math.round(view.ratio);
  const pixel = (t) => Math.floor((t - t0) * scale);
  let x = 0;
  let i = firstAbove(end, t0, lane.first, lane.last);
  while (x < width) {
    const ta = t0 + x / scale;
    const tb = t0 + (x + 1) / scale;
    i = nextAbove(end, ta, i, lane.last);
    if (i === lane.last || start[i] >= tb) {
      const until = i === lane.last ? width : Math.max(x + 1, Math.min(width, pixel(start[i])));
      // After the end of the run the background is blank, not idle time.
      const over = Math.max(x, Math.min(until, pixel(run.makespan) + 1));
      surface.fill(left + x, left + over, y0, y1, colours.idle);
      x = until;
    } else if (start[i] <= ta && end[i] >= tb && (end[i] - start[i]) * scale >= 2) {
      const until = Math.max(x + 1, Math.min(width, pixel(end[i])));
      let from = x;
      if (x === pixel(start[i]) && (end[i] - start[i]) * scale >= wide) {
        surface.fill(left + x, left + x + 1, y0, y1, colours.edge);
        ++from;
      }
      paintOp(band, i, left + from, left + until);
      x = until;
    } else {
      const last = nextAbove(start, tb, i, lane.last) - 1;
      const lastIsWide = (end[last] - start[last]) * scale >= wide;
      if (lastIsWide && pixel(start[last]) === x) {
        surface.fill(left + x, left + x + 1, y0, y1, colours.edge);
      } else if (lastIsWide && last === i) {  // the last column of an op, partly idle
        surface.fill(left + x, left + x + 1, y0, y1, end[i] - ta < (tb - ta) / 2 ? colours.idle : base[run.ink[i]]);
      } else if (last === i && lane.kind !== 'compute') {  // a short op without neighbors is drawn one column wide
        surface.fill(left + x, left + x + 1, y0, y1, base[run.ink[i]]);
      } else {
        // Ops are about one pixel wide: single columns would flicker, so a block of columns shows their average.
        let until = Math.min(width, (Math.floor(x / block) + 1) * block);
        let lastOfBlock = nextAbove(start, t0 + until / scale, last, lane.last) - 1;
        const next = lastOfBlock + 1;
        if (next === lane.last || (start[next] - end[lastOfBlock]) * scale > block) {
          until = Math.min(until, Math.max(x + 1, pixel(end[lastOfBlock]) + 1));
        }
        if ((lastOfBlock - i + 1) * 1.5 < until - x) {
          until = x + 1;
          lastOfBlock = last;
        }
        paintFractions(band, i, lastOfBlock, ta, t0 + until / scale, left + x, left + until);
        x = until;
        continue;
      }
      ++x;
    }
  }
}

function paintOp({surface, run, y0, y1, base, patterns}, i, x0, x1) {
  if (x1 <= x0) return;
  const kind = run.kind[i];
  const joint = kind >= 4 && kind < 8;
  const parts = joint ? [run.ink[i], run.partner.ink[run.partnerOf[i]]] : [run.ink[i]];
  let from = y0;
  parts.forEach((ink, part) => {
    const to = part + 1 === parts.length ? y1 : (y0 + y1) >> 1;
    const pattern = kPatterns[ink >> 8];
    surface.fill(x0, x1, from, to, base[ink]);
    if (patterns && pattern && base === colours.fill) surface.ink(x0, x1, from, to, pattern, colours.pattern[ink]);
    from = to;
  });
}

// Paints columns that contain several ops: the height of each ink is its fraction of time; the remainder at the top is
// idle time.
function paintFractions({surface, run, y0, y1, base}, first, last, ta, tb, x0, x1) {
  const before = ta - run.start[first];
  const after = run.end[last] - tb;
  const perTime = (y1 - y0) / (tb - ta);
  let y = y1;
  let sum = 0;
  for (const {ink, mask, upTo} of run.sums) {
    let time = upTo[last + 1] - upTo[first];
    if (time <= 0) continue;
    if (before > 0) time -= before * fractionOfInk(run, first, ink, mask);
    if (after > 0) time -= after * fractionOfInk(run, last, ink, mask);
    sum += time;
    const top = Math.max(y0, y1 - Math.round(sum * perTime));
    if (top < y) surface.fill(x0, x1, top, y, base[ink]);
    y = Math.min(y, top);
  }
  if (y > y0) surface.fill(x0, x1, y0, y, colours.idle);
}

// firstAbove for results that are likely among the next few values.
function nextAbove(values, x, first, last) {
  const near = Math.min(last, first + 4);
  for (let i = first; i < near; ++i) if (values[i] > x) return i;
  return near === last ? last : firstAbove(values, x, near, last);
}

// Visits the visible ops of a lane that are in the ascending list `marked`, each pixel at most once.
function paintMarked({run, lane, scale, width}, marked, visit) {
  const {start, end} = run;
  const stop = firstAbove(marked, lane.last - 1, 0, marked.length);
  let at = firstAbove(marked, lane.first - 1, 0, stop);
  let done = 0;
  const endAt = (k) => end[marked[k]];
  while (at < stop) {
    // The next op that ends after the last visited pixel.
    const t = view.t0 + done / scale;
    let step = 1;
    let low = at;
    while (low + step < stop && endAt(low + step - 1) <= t) {
      low += step;
      step *= 2;
    }
    let high = Math.min(stop, low + step);
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (endAt(middle) > t) high = middle; else low = middle + 1;
    }
    at = low;
    if (at === stop) return;
    const op = marked[at];
    const from = Math.max(done, Math.floor((start[op] - view.t0) * scale));
    if (from >= width) return;
    const to = Math.min(width, Math.max(from + 1, Math.floor((end[op] - view.t0) * scale)));
    visit(op, from, to);
    done = to;
    ++at;
  }
}
