
// Pixels. Plots are painted into a buffer column by column, so that a frame costs what the window shows, however many
// ops there are; text and outlines come on top.

// By class; the dark ones are the same hues, lightened where they would drown.
const kLightClasses = ['#332288', '#d55e00', '#ffd23f', '#00735c', '#66ccee', '#9b59b6', '#661100'];
const kDarkClasses = ['#6152e6', '#e8700a', '#ffd23f', '#0a8f73', '#7fdcf7', '#b565d6', '#96321c'];

let colours = null;  // of the theme in use

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
function mixed(a, b, share) {
  return a.map((value, i) => Math.round(value + (b[i] - value) * share));
}

function chooseColours() {
  const style = getComputedStyle(document.documentElement);
  const css = (name) => style.getPropertyValue(name).trim();
  const dark = isDark();
  const idle = dark ? '#2b3138' : '#f2f2f2';
  const page = css('--page');
  const classes = dark ? kDarkClasses : kLightClasses;
  const hexes = classes.map(rgbOf);
  // Whether white text has more contrast on it than black (WCAG 2.2, relative luminance).
  const linear = (v) => v <= 10.31 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4;
  const luminance = (c) => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);
  const white = (c) => 1.05 / (luminance(c) + 0.05) > (luminance(c) + 0.05) / 0.05;
  colours = {
    dark, page, text: css('--text'), soft: css('--soft'), line: css('--line'), accent: css('--accent'), bad: css('--bad'),
    classes, idle: packed(rgbOf(idle)), edge: packed(rgbOf(page)), path: packed(rgbOf(dark ? '#ffffff' : '#000000')),
    fill: hexes.map(packed), dim: hexes.map((c) => packed(mixed(c, rgbOf(idle), 0.8))),
    ink: hexes.map((c) => packed(mixed(c, white(c) ? [255, 255, 255] : [0, 0, 0], 0.45))),
    label: hexes.map((c) => white(c) ? '#ffffff' : '#000000'),
  };
}

// Where a pattern has ink. Forward is plain.
const kPatterns = [
  null,
  (x, y) => (x + y) % 8 < 2,
  (x, y) => x % 6 < 2 && y % 6 < 2,
  (x, y) => (x - y & 7) < 2,
  (x) => x % 5 < 2,
  (x, y) => y % 5 < 1,
  (x, y) => (x + y) % 8 < 1 || (x - y & 7) < 1,
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
  // Puts the buffer on the canvas; from then on the context draws in CSS pixels.
  put() {
    this.context.setTransform(1, 0, 0, 1, 0, 0);
    this.context.putImageData(this.image, 0, 0);
    this.context.setTransform(view.ratio, 0, 0, view.ratio, 0, 0);
  }
}

// One lane between the device rows y0 and y1. `options`: patterns, path (outline the longest path), found (the ops that
// a search found, ascending, or null).
function paintLane(surface, run, lane, y0, y1, options) {
  const {start, end} = run;
  const left = Math.round(view.gutter * view.ratio);
  const width = surface.w - left;
  const t0 = view.t0;
  const scale = (view.width - view.gutter) * view.ratio / (view.t1 - t0);
  const wide = 5 * view.ratio;  // from here on an op is set apart from the one before it
  const block = 8 * Math.round(view.ratio);
  const base = options.found ? colours.dim : colours.fill;
  const pixel = (t) => Math.floor((t - t0) * scale);
  let x = 0;
  let i = firstAbove(end, t0, lane.first, lane.last);
  while (x < width) {
    const ta = t0 + x / scale;
    const tb = t0 + (x + 1) / scale;
    i = nextAbove(end, ta, i, lane.last);
    if (i === lane.last || start[i] >= tb) {
      const until = i === lane.last ? width : Math.max(x + 1, Math.min(width, pixel(start[i])));
      // Behind the end of the run there is nothing, not even idle time.
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
      paintOp(surface, run, i, left + from, left + until, y0, y1, base, options.patterns);
      x = until;
    } else {
      const last = nextAbove(start, tb, i, lane.last) - 1;
      const lastIsWide = (end[last] - start[last]) * scale >= wide;
      if (lastIsWide && pixel(start[last]) === x) {
        surface.fill(left + x, left + x + 1, y0, y1, colours.edge);
      } else if (lastIsWide && last === i) {  // its last column, shared with idle time
        surface.fill(left + x, left + x + 1, y0, y1, end[i] - ta < (tb - ta) / 2 ? colours.idle : base[classOf(run.kind[i])]);
      } else if (last === i && lane.kind !== 'compute') {  // short and alone: seen all the same
        surface.fill(left + x, left + x + 1, y0, y1, base[classOf(run.kind[i])]);
      } else {
        // Where ops are about as narrow as pixels, single columns would flicker: a block of them shares its ops.
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
        paintShares(surface, run, i, lastOfBlock, ta, t0 + until / scale, left + x, left + until, y0, y1, base);
        x = until;
        continue;
      }
      ++x;
    }
  }
  paintMarked(run, lane, run.instants, scale, width, (op, from, to) => {
    paintOp(surface, run, op, left + from, left + to, y0, y1, base, false);
  });
  if (options.found) {
    paintMarked(run, lane, options.found, scale, width, (op, from, to) => {
      paintOp(surface, run, op, left + from, left + to, y0, y1, colours.fill, options.patterns);
    });
  }
  if (options.path) {
    const thick = Math.max(1, Math.min(Math.round(2 * view.ratio), (y1 - y0) >> 2));
    paintMarked(run, lane, run.criticalOps, scale, width, (op, from, to) => {
      surface.fill(left + from, left + to, y0, y0 + thick, colours.path);
      surface.fill(left + from, left + to, y1 - thick, y1, colours.path);
      if (to - from < wide) return;
      surface.fill(left + from, left + from + thick, y0, y1, colours.path);
      surface.fill(left + to - thick, left + to, y0, y1, colours.path);
    });
  }
}

function paintOp(surface, run, i, x0, x1, y0, y1, base, patterns) {
  if (x1 <= x0) return;
  const kind = run.kind[i];
  const joint = kind >= 4 && kind < 8;
  const parts = joint ? [kind & 3, run.partner.kind[run.partnerOf[i]]] : [classOf(kind)];
  let from = y0;
  parts.forEach((c, part) => {
    const to = part + 1 === parts.length ? y1 : (y0 + y1) >> 1;
    surface.fill(x0, x1, from, to, base[c]);
    if (patterns && kPatterns[c] && base === colours.fill) surface.ink(x0, x1, from, to, kPatterns[c], colours.ink[c]);
    from = to;
  });
}

// Columns that several ops share: each class has its share of the height, idle time what is left at the top.
function paintShares(surface, run, first, last, ta, tb, x0, x1, y0, y1, base) {
  const {classes, sums} = run;
  const before = ta - run.start[first];
  const after = run.end[last] - tb;
  const perTime = (y1 - y0) / (tb - ta);
  let y = y1;
  let sum = 0;
  for (let k = 0; k < classes.length; ++k) {
    const c = classes[k];
    const upTo = sums[c];
    let time = upTo[last + 1] - upTo[first];
    if (time <= 0) continue;
    if (before > 0) time -= before * shareOfClass(run, first, c);
    if (after > 0) time -= after * shareOfClass(run, last, c);
    sum += time;
    const top = Math.max(y0, y1 - Math.round(sum * perTime));
    if (top < y) surface.fill(x0, x1, top, y, base[c]);
    y = Math.min(y, top);
  }
  if (y > y0) surface.fill(x0, x1, y0, y, colours.idle);
}

// firstAbove, where it is most likely the next few.
function nextAbove(values, x, first, last) {
  const near = Math.min(last, first + 4);
  for (let i = first; i < near; ++i) if (values[i] > x) return i;
  return near === last ? last : firstAbove(values, x, near, last);
}

function shareOfClass(run, i, c) {
  const kind = run.kind[i];
  if (kind < 4) return kind === c ? 1 : 0;
  if (kind >= 8) return classOf(kind) === c ? 1 : 0;
  return ((kind & 3) === c ? 0.5 : 0) + (run.partner.kind[run.partnerOf[i]] === c ? 0.5 : 0);
}

// Visits the ops of the ascending list `marked` that lie on the lane and in view, each pixel at most once.
function paintMarked(run, lane, marked, scale, width, visit) {
  const {start, end} = run;
  const stop = firstAbove(marked, lane.last - 1, 0, marked.length);
  let at = firstAbove(marked, lane.first - 1, 0, stop);
  let done = 0;
  const endAt = (k) => end[marked[k]];
  while (at < stop) {
    // The next op that ends beyond what is done.
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
