
// Draws the lanes of one run: one row per rank for compute, and optional rows for dispatch and combine, transfers and
// collectives.

const kAxis = 24;
const timelines = [];
const shown = {parts: true, links: false, collectives: false, path: false, patterns: false};
let cursorOwner = null;  // the timeline whose cursor is set

class Timeline {
  constructor(run, letter, box) {
    this.run = run;
    this.found = null;
    this.hover = null;  // {op} or {idle}
    this.cursor = -1;   // op
    this.canvas = element('canvas', '');
    this.inner = element('div', 'inner', this.canvas);
    this.box = element('div', 'lanes', this.inner);
    this.surface = new Surface(this.canvas);
    this.box.tabIndex = 0;
    this.box.setAttribute('role', 'application');
    this.describeBox();
    this.box.setAttribute('aria-describedby', 'timeline-hint');
    this.head = element('div', 'plot-head');
    this.plot = element('div', 'plot', this.head, this.box);
    this.setLetter(letter);
    box.append(this.plot);
    this.box.addEventListener('scroll', () => view.repaint());
    this.box.addEventListener('keydown', (event) => this.key(event));
    this.box.addEventListener('blur', () => card.hide());
    followPointer(this.box, (event) => this.point(event), (event) => this.tap(event));
    view.painters.push(this);
    timelines.push(this);
  }

  // Names the run by a letter; '' for the only one.
  setLetter(letter) {
    this.letter = letter;
    this.head.hidden = !letter;
    this.head.replaceChildren(element('h3', '', element('span', 'run', letter), ' ' + this.run.name),
                              element('span', '', timeText(this.run.makespan)));
  }

  // Replaces the run by another one. The layout must be computed anew.
  setRun(run) {
    this.run = run;
    this.setLetter(this.letter);
    this.found = null;
    this.hover = null;
    this.cursor = -1;
    this.describeBox();
  }

  describeBox() {
    const {run} = this;
    this.box.setAttribute('aria-label', `Timeline of ${run.name}: ${run.ranks} ranks, ${timeText(run.makespan)}`);
  }

  // Computes the rows, top to bottom, and their positions. `room` is the available height.
  layout(room) {
    const {run} = this;
    const most = run.ranks <= 8 ? 30 : run.ranks <= 16 ? 24 : run.ranks <= 32 ? 18 : run.ranks <= 64 ? 12 : 9;
    // Rows are flatter, but at least 18 px high, to show all ranks.
    const withParts = shown.parts && run.parts;
    const fitting = Math.floor((room - kAxis - 4) / run.ranks) - (withParts ? 14 : 3);
    const height = Math.min(most, Math.max(fitting, 18));
    this.gap = height >= 18 ? 3 : 1;
    this.rows = [];
    const side = run.ranks > 64 ? 5 : height >= 24 ? 11 : 7;
    let y = kAxis + 2;
    const byRank = Array.from({length: run.ranks}, () => ({links: [], collective: null, parts: null}));
    for (const lane of run.lanes) {
      if (lane.first === lane.last) continue;
      if (lane.kind === 'link' || toHost(lane)) byRank[lane.rank].links.push(lane);
      if (lane.kind === 'collective') byRank[lane.rank].collective = lane;
      if (lane.kind === 'parts') byRank[lane.rank].parts = lane;
    }
    const add = (lane, tall) => {
      this.rows.push({lane, y, height: tall});
      y += tall + this.gap;
    };
    for (let rank = 0; rank < run.ranks; ++rank) {
      add(run.lanes[rank], height);
      if (shown.parts && byRank[rank].parts) add(byRank[rank].parts, side);
      if (shown.links) for (const lane of byRank[rank].links) add(lane, side);
      if (shown.collectives && byRank[rank].collective) add(byRank[rank].collective, side);
    }
    this.total = y + 2;
    this.height = Math.min(this.total, room);
    this.box.style.height = this.height + 2 + 'px';
    this.inner.style.height = this.total + 'px';
    this.surface.resize(view.width, this.height);
  }

  paint() {
    const {surface, run} = this;
    const {context} = surface;
    const top = this.box.scrollTop;
    surface.clear();
    const ratio = view.ratio;
    const visible = this.rows.filter((row) => row.y + row.height > top && row.y < top + this.height);
    const options = {patterns: shown.patterns, path: shown.path, found: this.found};
    const clip = Math.round(kAxis * ratio);
    for (const row of visible) {
      const y0 = Math.max(clip, Math.round((row.y - top) * ratio));
      const y1 = Math.min(surface.h, Math.round((row.y + row.height - top) * ratio));
      if (y1 > y0) paintLane(surface, run, row.lane, y0, y1, options);
    }
    surface.put();
    this.paintText(visible, top);
    for (const [what, width] of [[this.hover, 2], [this.cursor >= 0 ? {op: this.cursor} : null, 3]])
      if (what) this.outline(what, width, top);
    context.fillStyle = colours.page;
    context.fillRect(0, 0, view.width, kAxis);
    paintAxis(context, kAxis, colours);
    if (view.mark !== null && view.mark >= view.t0 && view.mark <= view.t1) {
      context.fillStyle = colours.accent;
      context.fillRect(Math.round(view.x(view.mark)), 0, 1, this.height);
    }
  }

  paintText(visible, top) {
    const {run} = this;
    const {context} = this.surface;
    context.textBaseline = 'middle';
    context.save();
    context.beginPath();
    context.rect(view.gutter, kAxis, view.width, this.height);
    context.clip();
    context.textAlign = 'center';
    for (const row of visible) {
      if (row.height < 11) continue;
      const size = row.height >= 18 ? 12 : 10;
      context.font = kFont(size);
      const middle = row.y - top + row.height / 2 + 0.5;
      const {lane} = row;
      const first = firstAbove(run.end, view.t0, lane.first, lane.last);
      const last = firstAbove(run.start, view.t1, first, lane.last);
      if (last - first > view.width / 3) continue;  // too narrow for text
      for (let i = first; i < last; ++i) {
        const x0 = Math.max(view.gutter, view.x(run.start[i]));
        const x1 = Math.min(view.width, view.x(run.end[i]));
        const room = x1 - x0 - 3;
        if (room < size * 0.6) continue;
        const text = this.fitting(shortLabelOf(run, i), room, size);
        if (!text) continue;
        const kind = run.kind[i];
        const dimmed = this.found && !this.isFound(i);
        const ink = run.ink[i];
        context.fillStyle = dimmed ? colours.soft : colours.label[ink];
        if (kind >= 4 && kind < 8 && !dimmed) this.joint(i, (x0 + x1) / 2, row, top, room, size);
        else this.label(text, (x0 + x1) / 2, middle, ink);
      }
    }
    context.restore();
    this.paintGutter(visible, top);
  }

  // Draws the labels of the two halves of a joint block.
  joint(i, x, row, top, room, size) {
    const {run} = this;
    const {context} = this.surface;
    if (row.height < 24) return;
    context.font = kFont(10);
    labelOf(run, i).split('+').forEach((text, half) => {
      const ink = half === 0 ? run.ink[i] : run.partner.ink[run.partnerOf[i]];
      context.fillStyle = colours.label[ink];
      const shortest = this.fitting(text, room, 10);
      if (shortest) this.label(shortest, x, row.y - top + row.height * (half === 0 ? 0.27 : 0.77), ink);
    });
    context.font = kFont(size);
  }

  // Draws text on an op, outlined to be readable on a pattern.
  label(text, x, y, ink) {
    const {context} = this.surface;
    if (shown.patterns && kPatterns[ink >> 8]) {
      context.strokeStyle = colours.css[ink];
      context.lineWidth = 4;
      context.lineJoin = 'round';
      context.strokeText(text, x, y);
    }
    context.fillText(text, x, y);
  }

  // Returns the longest form of a label that fits: with the slice, without it, or the letter.
  fitting(text, room, size) {
    const wide = (t) => t.length * size * 0.62;
    for (const form of [text, text.split('.')[0], text[0]]) if (wide(form) <= room) return form;
    return '';
  }

  isFound(i) {
    const at = firstAbove(this.found, i - 1, 0, this.found.length);
    return at < this.found.length && this.found[at] === i;
  }

  paintGutter(visible, top) {
    const {context} = this.surface;
    context.font = kFont(12);
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    let free = kAxis;
    const narrow = view.gutter < 60;
    for (const row of visible) {
      const middle = row.y - top + row.height / 2;
      if (middle - 6 < free) continue;
      const {lane} = row;
      const links = shown.links || shown.collectives || (shown.parts && this.run.parts);
      if (lane.kind !== 'compute' && (row.height < 11 || narrow)) continue;
      if (lane.kind === 'compute' && links && this.run.ranks > 32 && lane.rank % 4 > 0) continue;
      context.fillStyle = lane.kind === 'compute' ? colours.text : colours.soft;
      if (lane.kind !== 'compute') context.font = kFont(10);
      else context.font = kFont(12);
      const text = lane.kind === 'link' ? '→ ' + lane.peer : toHost(lane) ? lane.kind : lane.kind === 'collective' ? 'coll.' : lane.kind === 'parts' ? 'experts' :
        (narrow ? 'r' : 'rank ') + lane.rank;
      context.fillText(text, view.gutter - 7, middle + 0.5);
      free = middle + 6;
    }
  }

  // Draws the outline of an op or idle interval, with a border in the page's colour for contrast.
  outline({op, idle}, width, top) {
    const {run} = this;
    const {context} = this.surface;
    const lane = op === undefined ? run.lanes[firstAbove(run.idle.first, idle, 0, run.idle.first.length) - 1]
                                  : laneOf(run, op);
    const row = this.rows.find((each) => each.lane === lane);
    if (!row) return;
    const start = op === undefined ? run.idle.start[idle] : run.start[op];
    const end = op === undefined ? run.idle.end[idle] : run.end[op];
    const x0 = Math.max(view.gutter - 4, view.x(start));
    const x1 = Math.min(view.width + 4, Math.max(view.x(end), x0 + 2));
    if (x1 < view.gutter || x0 > view.width) return;
    context.save();
    context.beginPath();
    context.rect(view.gutter - 3, kAxis, view.width, this.height);
    context.clip();
    context.lineWidth = width + 3;
    context.strokeStyle = colours.page;
    context.strokeRect(x0, row.y - top, x1 - x0, row.height);
    context.lineWidth = width;
    context.strokeStyle = colours.accent;
    context.strokeRect(x0, row.y - top, x1 - x0, row.height);
    context.restore();
  }

  // Returns the op or idle interval at a position in the box, in CSS pixels from its corner.
  hit(x, y) {
    const {run} = this;
    if (x < view.gutter || y < kAxis) return null;
    const inside = y + this.box.scrollTop;
    const row = this.rows.find((each) => inside >= each.y - 1 && inside < each.y + each.height + 1);
    if (!row) return null;
    const t = view.t(x);
    const slop = 2 * (view.t1 - view.t0) / (view.width - view.gutter);
    const {lane} = row;
    const i = firstAbove(run.end, t, lane.first, lane.last);
    if (i < lane.last && run.start[i] <= t) return {op: i};
    if (lane.kind === 'compute') {
      const [first, last] = idleRange(run, lane.rank);
      const k = firstAbove(run.idle.end, t, first, last);
      if (k < last && run.idle.start[k] <= t) return {idle: k};
    }
    // Short transfers are hard to hit: takes the nearest one within a tolerance.
    if (i < lane.last && run.start[i] - t <= slop) return {op: i};
    if (i > lane.first && t - run.end[i - 1] <= slop) return {op: i - 1};
    return null;
  }

  place(event) {
    const box = this.box.getBoundingClientRect();
    return [event.clientX - box.left - this.box.clientLeft, event.clientY - box.top - this.box.clientTop];
  }

  point(event) {
    const hit = event ? this.hit(...this.place(event)) : null;
    const time = event ? view.t(this.place(event)[0]) : null;
    view.mark = time !== null && time >= view.t0 ? time : null;
    this.hover = hit;
    if (hit) card.show(this.describe(hit), event.clientX, event.clientY);
    else card.hide();
    view.repaint();
  }

  describe(hit) {
    return hit.op === undefined ? describeIdle(this.run, hit.idle) : describeOp(this.run, hit.op);
  }

  // Sets the cursor on a click or touch.
  tap(event) {
    const hit = this.hit(...this.place(event));
    if (hit && hit.op !== undefined) {
      this.setCursor(hit.op, false);
      card.show(this.describe(hit), event.clientX, event.clientY);
    } else if (hit) {
      card.show(this.describe(hit), event.clientX, event.clientY);
      document.getElementById('live').textContent = spoken(this.describe(hit));
    } else {
      card.hide();
    }
  }

  setCursor(op, withCard = true) {
    if (cursorOwner && cursorOwner !== this) cursorOwner.cursor = -1;
    cursorOwner = this;
    this.cursor = op;
    const {run} = this;
    view.reveal(run.start[op], run.end[op]);
    view.mark = null;
    const row = this.rows.find((each) => each.lane === laneOf(run, op));
    if (row) {
      const top = this.box.scrollTop;
      if (row.y - kAxis < top) this.box.scrollTop = row.y - kAxis - 4;
      else if (row.y + row.height > top + this.height) this.box.scrollTop = row.y + row.height - this.height + 4;
    }
    const description = describeOp(run, op);
    document.getElementById('live').textContent = spoken(description);
    if (withCard && row) {
      const box = this.box.getBoundingClientRect();
      const x = Math.min(box.right, Math.max(box.left + view.gutter, box.left + view.x(run.end[op])));
      card.show(description, x - 10, box.top + row.y + row.height - this.box.scrollTop - 8);
    }
    view.repaint();
  }

  // Returns the op of another row that is nearest in time to `op`.
  nearest(row, op) {
    const {run} = this;
    const middle = (run.start[op] + run.end[op]) / 2;
    const {first, last} = row.lane;
    const i = Math.min(last - 1, firstAbove(run.end, middle, first, last));
    return i > first && middle - run.end[i - 1] < run.start[i] - middle ? i - 1 : i;
  }

  step(dx, dy) {
    const {run} = this;
    if (this.cursor < 0) {
      const {lane} = this.rows[0];
      if (lane.first < lane.last) this.setCursor(Math.min(lane.last - 1, firstAbove(run.end, view.t0, lane.first, lane.last)));
      return;
    }
    const lane = laneOf(run, this.cursor);
    if (dx !== 0) {
      const to = Math.max(lane.first, Math.min(lane.last - 1, this.cursor + dx));
      return this.setCursor(to);
    }
    let at = this.rows.findIndex((row) => row.lane === lane) + dy;
    while (at >= 0 && at < this.rows.length && this.rows[at].lane.first === this.rows[at].lane.last) at += dy;
    if (at >= 0 && at < this.rows.length) this.setCursor(this.nearest(this.rows[at], this.cursor));
  }

  // Moves the cursor to the op that its op waited for; through a transfer to its sender if transfers are not shown.
  cause() {
    let need = this.cursor < 0 ? -1 : this.run.need[this.cursor];
    while (need >= 0 && !this.rows.some((row) => row.lane === laneOf(this.run, need))) need = this.run.need[need];
    if (need >= 0) this.setCursor(need);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const span = view.t1 - view.t0;
    const middle = this.cursor >= 0 ? (this.run.start[this.cursor] + this.run.end[this.cursor]) / 2 : (view.t0 + view.t1) / 2;
    const actions = {
      'ArrowLeft': () => event.shiftKey ? view.move(-span / 5) : this.step(-1, 0),
      'ArrowRight': () => event.shiftKey ? view.move(span / 5) : this.step(1, 0),
      'ArrowUp': () => this.step(0, -1),
      'ArrowDown': () => this.step(0, 1),
      'PageUp': () => this.step(-10, 0),
      'PageDown': () => this.step(10, 0),
      'Enter': () => this.cause(),
      '+': () => view.zoom(middle, 1.5),
      '=': () => view.zoom(middle, 1.5),
      '-': () => view.zoom(middle, 1 / 1.5),
      '0': () => view.all(),
      'Home': () => view.all(),
      'Escape': () => this.release(),
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    const {t0, t1} = view;
    action();
    // After a move the tooltip is at the wrong position.
    if ((view.t0 !== t0 || view.t1 !== t1) && !event.key.startsWith('Arrow') && event.key !== 'Enter') card.hide();
  }

  release() {
    this.cursor = -1;
    cursorOwner = null;
    card.hide();
    view.repaint();
  }
}
