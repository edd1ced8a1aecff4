
// The time interval that all plots show, and the scheduling of frames.

const view = {
  end: 1,  // makespan of the longest run
  t0: 0,
  t1: 1,
  width: 600,  // of every plot, CSS pixels
  gutter: 64,
  ratio: 1,  // device pixels per CSS pixel
  mark: null,  // time of a vertical line through all plots
  painters: [],
  frames: [],  // durations of the latest frames, ms
  scheduled: false,

  x(t) { return this.gutter + (t - this.t0) / (this.t1 - this.t0) * (this.width - this.gutter); },
  t(x) { return this.t0 + (x - this.gutter) / (this.width - this.gutter) * (this.t1 - this.t0); },
  whole() { return this.t0 <= 0 && this.t1 >= this.end; },

  show(t0, t1) {
    const span = Math.min(this.end, Math.max(t1 - t0, Math.min(20, this.end)));
    const first = Math.max(0, Math.min(t0 - (span - (t1 - t0)) / 2, this.end - span));
    if (first === this.t0 && first + span === this.t1) return;
    this.t0 = first;
    this.t1 = first + span;
    this.repaint();
  },
  all() { this.show(0, this.end); },
  // A `factor` above 1 zooms in. The position of time `t` is kept.
  zoom(t, factor) { this.show(t - (t - this.t0) / factor, t + (this.t1 - t) / factor); },
  move(dt) {
    const shift = Math.max(-this.t0, Math.min(dt, this.end - this.t1));
    this.show(this.t0 + shift, this.t1 + shift);
  },
  // Pans to show [start, end] with a margin; zooms only if it does not fit.
  reveal(start, end) {
    const span = this.t1 - this.t0;
    if (end - start > span) return this.show(start, end);
    const room = Math.min(span * 0.1, (span - (end - start)) / 2);
    if (start < this.t0) this.move(start - room - this.t0);
    else if (end > this.t1) this.move(end + room - this.t1);
  },
  repaint() {
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame(() => this.paint());
  },
  paint() {
    this.scheduled = false;
    const begin = performance.now();
    for (const painter of this.painters) painter.paint();
    if (this.frames.push(performance.now() - begin) > 2000) this.frames.shift();
  },
};

// Draws the time axis along the top of a canvas, in CSS pixels.
function paintAxis(context, height, colours) {
  const span = view.t1 - view.t0;
  const room = view.width - view.gutter;
  const step = niceStep(span * 92 / room);
  context.fillStyle = colours.page;
  context.fillRect(0, 0, view.width, height);
  context.font = kFont(12);
  context.textBaseline = 'middle';
  context.textAlign = 'left';
  for (let k = Math.ceil(view.t0 / step); k * step <= view.t1; ++k) {
    const x = Math.round(view.x(k * step));
    context.fillStyle = colours.line;
    context.fillRect(x, height - 6, 1, 6);
    const text = tickText(k * step, step, view.t1);
    if (x + 4 + context.measureText(text).width > view.width) continue;
    context.fillStyle = colours.soft;
    context.fillText(text, x + 4, height / 2);
  }
}

const kFont = (size) => size + 'px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

// Handles pointer events of a plot: drag to pan, wheel and pinch to zoom.
function followPointer(box, onHover, onTap) {
  const pointers = new Map();
  let travelled = 0;
  const at = (event) => event.clientX - box.getBoundingClientRect().left;
  box.addEventListener('pointerdown', (event) => {
    if (event.button > 0 || event.clientX - box.getBoundingClientRect().left > box.clientWidth) return;
    pointers.set(event.pointerId, event);
    travelled = 0;
  });
  box.addEventListener('pointermove', (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return onHover(event);
    const perPixel = (view.t1 - view.t0) / (view.width - view.gutter);
    travelled += Math.abs(event.clientX - before.clientX) + Math.abs(event.clientY - before.clientY);
    if (travelled < 4) return undefined;
    box.setPointerCapture(event.pointerId);
    box.classList.add('dragging');
    onHover(null);
    if (pointers.size === 1) {
      view.move((before.clientX - event.clientX) * perPixel);
      if (event.pointerType === 'mouse') box.scrollTop += before.clientY - event.clientY;
    } else {
      const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
      const apart = Math.max(8, Math.abs(before.clientX - other.clientX));
      const now = Math.max(8, Math.abs(event.clientX - other.clientX));
      view.zoom(view.t((at(event) + at(other)) / 2), now / apart);
    }
    pointers.set(event.pointerId, event);
    return undefined;
  });
  const release = (event) => {
    if (pointers.delete(event.pointerId) && travelled < 4 && event.type === 'pointerup') onTap(event);
    box.classList.remove('dragging');
  };
  box.addEventListener('pointerup', release);
  box.addEventListener('pointercancel', release);
  // A finger leaves when it is lifted: the card of a tap stays until the next touch.
  box.addEventListener('pointerleave', (event) => { if (event.pointerType !== 'touch') onHover(null); });
  document.addEventListener('pointerdown', (event) => { if (event.pointerType === 'touch' && !box.contains(event.target)) onHover(null); });
  box.addEventListener('wheel', (event) => {
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      const pixels = event.shiftKey && !event.deltaX ? event.deltaY : event.deltaX;
      view.move(pixels * (view.t1 - view.t0) / (view.width - view.gutter));
      return;
    }
    // Do not zoom while the page is being scrolled across a plot, or when the view cannot be zoomed out further.
    if (!event.ctrlKey && (scrollingPage || (event.deltaY > 0 && view.whole()))) return;
    event.preventDefault();
    const pixels = event.deltaMode === 1 ? event.deltaY * 18 : event.deltaY;
    view.zoom(view.t(at(event)), Math.exp(-Math.max(-240, Math.min(240, pixels)) * (event.ctrlKey ? 0.008 : 0.0025)));
  }, {passive: false});
}

// Whether the wheel is currently scrolling the page: its previous event was shortly before and outside plots.
let scrollingPage = false;
let scrollingUntil = 0;
window.addEventListener('wheel', (event) => {
  const inPlot = event.target instanceof Element && event.target.closest('.lanes, .curves');
  const now = performance.now();
  scrollingPage = (!inPlot || scrollingPage) && (!inPlot || now < scrollingUntil);
  if (scrollingPage) scrollingUntil = now + 250;
}, {capture: true, passive: true});
