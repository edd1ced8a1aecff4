
// Plots the memory of all ranks over time, on the axis of the timeline. The rank with the highest peak and the selected
// rank are bold.

const kCurvesHeight = 220;

class Curves {
  constructor(run, letter, box, most) {
    this.canvas = element('canvas', '');
    this.surface = new Surface(this.canvas);
    this.box = element('div', 'curves', this.canvas);
    this.box.setAttribute('role', 'img');
    this.select = element('select', '');
    this.select.addEventListener('change', () => {
      this.chosen = Number(this.select.value);
      this.name();
      view.repaint();
    });
    this.title = element('span', '');
    this.plot = element('div', 'plot',
                        element('div', 'plot-head', element('h3', '', ...(letter ? [element('span', 'run', letter), ' '] : []), 'Memory'),
                                this.title, element('label', '', 'Rank ', this.select)), this.box);
    box.append(this.plot);
    this.setRun(run, most);
    followPointer(this.box, (event) => this.point(event), (event) => this.point(event));
    view.painters.push(this);
  }

  // Sets the run, and the upper end of the scale, which is common to both runs.
  setRun(run, most) {
    const {memory} = run;
    this.run = run;
    this.most = most;
    this.chosen = memory.worst;
    const options = memory.peak.map((peak, rank) => {
      const worst = rank === memory.worst ? ', highest' : '';
      const option = element('option', '', `rank ${rank}: ${bytesText(peak)}${worst}`);
      option.value = rank;
      return option;
    });
    this.select.replaceChildren(...options);
    this.select.value = this.chosen;
    this.name();
  }

  name() {
    const {memory, capacity} = this.run;
    const text = `highest peak: rank ${memory.worst}, ${bytesText(memory.peak[memory.worst])}` +
      (capacity ? ` of ${bytesText(capacity)}` : '') + (memory.thinned ? '; reduced to the extremes of short intervals' : '');
    this.title.textContent = text;
    this.box.setAttribute('aria-label', `Memory over time per rank; ${text}; bold: rank ${this.chosen}`);
  }

  layout() { this.surface.resize(view.width, kCurvesHeight); }

  y(bytes) { return kCurvesHeight - 8 - bytes / this.most * (kCurvesHeight - 20); }

  paint() {
    const {surface, run} = this;
    const {context} = surface;
    surface.clear();
    const thin = packed(mixed(rgbOf(colours.page), rgbOf(colours.soft), run.ranks > 16 ? 0.45 : 0.7));
    for (let rank = 0; rank < run.ranks; ++rank)
      if (rank !== run.memory.worst && rank !== this.chosen) this.line(rank, 1, thin);
    const bold = Math.max(2, Math.round(2.5 * view.ratio));
    if (run.memory.worst !== this.chosen) this.line(run.memory.worst, bold, packed(rgbOf(colours.text)));
    this.line(this.chosen, bold, packed(rgbOf(colours.accent)));
    surface.put();
    this.scale();
    if (view.mark !== null && view.mark >= view.t0 && view.mark <= view.t1) {
      context.fillStyle = colours.accent;
      context.fillRect(Math.round(view.x(view.mark)), 0, 1, kCurvesHeight);
    }
  }

  // Draws a step curve: in each column of pixels from the minimum to the maximum value.
  line(rank, thick, colour) {
    const {surface, run} = this;
    const {time, total, first} = run.memory;
    const begin = first[rank];
    const last = first[rank + 1];
    const left = Math.round(view.gutter * view.ratio);
    const perPixel = (view.t1 - view.t0) / (surface.w - left);
    const row = (bytes) => Math.round(this.y(bytes) * view.ratio);
    let i = Math.max(begin, firstAbove(time, view.t0, begin, last) - 1);
    let held = total[i];
    for (let x = left; x < surface.w; ++x) {
      const ta = view.t0 + (x - left) * perPixel;
      if (ta > run.makespan) return;
      let least = held;
      let most = held;
      while (i + 1 < last && time[i + 1] < ta + perPixel) {
        held = total[++i];
        if (held < least) least = held;
        if (held > most) most = held;
      }
      const top = row(most) - (thick >> 1);
      surface.fill(x, x + 1, Math.max(0, top), Math.min(surface.h, row(least) - (thick >> 1) + thick), colour);
    }
  }

  scale() {
    const {context} = this.surface;
    const {capacity} = this.run;
    context.font = kFont(12);
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    // Steps are multiples of binary units so that labels are round.
    const unit = this.most >= 4 * 2 ** 30 ? 2 ** 30 : this.most >= 4 * 2 ** 20 ? 2 ** 20 : this.most >= 4096 ? 1024 : 1;
    const name = {[2 ** 30]: 'GiB', [2 ** 20]: 'MiB', 1024: 'KiB', 1: 'B'}[unit];
    const step = niceStep(this.most / unit / 6);
    for (let k = 0; k * step * unit <= this.most; ++k) {
      const y = Math.round(this.y(k * step * unit));
      context.fillStyle = colours.line;
      context.fillRect(view.gutter - 4, y, 4, 1);
      context.globalAlpha = 0.45;
      context.fillRect(view.gutter, y, view.width - view.gutter, 1);
      context.globalAlpha = 1;
      context.fillStyle = colours.soft;
      const text = significant(k * step, 4);
      if (y > 20) context.fillText(text, view.gutter - 7, y);
    }
    context.textAlign = 'left';
    context.fillText(name, 4, 9);
    if (!capacity) return;
    const y = Math.round(this.y(capacity)) + 0.5;
    context.strokeStyle = colours.bad;
    context.lineWidth = 1.5;
    context.setLineDash([7, 4]);
    context.beginPath();
    context.moveTo(view.gutter, y);
    context.lineTo(view.width, y);
    context.stroke();
    context.setLineDash([]);
    context.fillStyle = colours.bad;
    context.textAlign = 'right';
    const text = `capacity ${bytesText(capacity)}`;
    const below = y < 22;
    const middle = below ? y + 10 : y - 9;
    const width = context.measureText(text).width;
    context.fillStyle = colours.page;
    context.fillRect(view.width - 10 - width, middle - 8, width + 8, 16);
    context.fillStyle = colours.bad;
    context.fillText(text, view.width - 6, middle);
  }

  point(event) {
    const t = event ? view.t(event.clientX - this.box.getBoundingClientRect().left - 1) : -1;
    view.mark = t >= view.t0 && t <= view.t1 ? t : null;
    if (view.mark === null || t > this.run.makespan) {
      card.hide();
    } else {
      const {memory} = this.run;
      const i = sampleAt(memory, this.chosen, t);
      const pairs = memory.classes.map((name, c) => [name, bytesText(memory.bytes[c][i])]);
      pairs.push(['total', bytesText(memory.total[i])]);
      if (this.run.capacity) pairs.push(['of capacity', percentText(memory.total[i], this.run.capacity)]);
      card.show({title: `Rank ${this.chosen} at ${timeText(t, 5)}`, pairs, sentences: []}, event.clientX, event.clientY);
    }
    view.repaint();
  }
}
