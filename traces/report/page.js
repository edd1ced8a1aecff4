
// Sets up the page: sortable tables, theme, controls and plots.

const curves = [];
const byId = (id) => document.getElementById(id);

function sortable(table) {
  const heads = [...table.querySelectorAll('thead th')];
  heads.forEach((head, column) => {
    if (!('sort' in head.dataset)) return;
    const button = element('button', '', ...head.childNodes);
    button.type = 'button';
    head.replaceChildren(button);
    button.addEventListener('click', () => {
      const up = head.getAttribute('aria-sort') !== 'ascending';
      for (const other of heads) other.removeAttribute('aria-sort');
      head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
      const body = table.tBodies[0];
      const value = (row) => Number(row.cells[column].dataset.v);
      const rows = [...body.rows].sort((a, b) => up ? value(a) - value(b) : value(b) - value(a));
      body.append(...rows);
    });
  });
}

function themeButton() {
  const button = byId('theme');
  const name = () => { button.textContent = isDark() ? 'Light' : 'Dark'; };
  const change = () => {
    name();
    chooseColours();
    legend();
    view.repaint();
  };
  button.addEventListener('click', () => {
    document.documentElement.dataset.theme = isDark() ? 'light' : 'dark';
    change();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', change);
  // Prints use the light theme.
  let before = null;
  window.addEventListener('beforeprint', () => {
    before = document.documentElement.dataset.theme ?? '';
    document.documentElement.dataset.theme = 'light';
    chooseColours();
    legend();
    view.paint();
  });
  window.addEventListener('afterprint', () => {
    if (before) document.documentElement.dataset.theme = before;
    else delete document.documentElement.dataset.theme;
    change();
  });
  name();
}

function legend() {
  const occurs = (c) => timelines.some(({run}) => run.classes.includes(c));
  const items = kClasses.map((each, c) => {
    if (!occurs(c)) return null;
    const canvas = element('canvas', '');
    const surface = new Surface(canvas);
    surface.resize(20, 16);
    surface.fill(0, surface.w, 0, surface.h, colours.fill[c << 8]);
    if (shown.patterns && kPatterns[c]) surface.ink(0, surface.w, 0, surface.h, kPatterns[c], colours.pattern[c << 8]);
    surface.put();
    canvas.setAttribute('aria-hidden', 'true');
    if (!shown.patterns) {
      surface.context.font = kFont(12);
      surface.context.textAlign = 'center';
      surface.context.textBaseline = 'middle';
      surface.context.fillStyle = colours.label[c << 8];
      surface.context.fillText(each.letter, 10, 8.5);
    }
    return element('li', '', canvas, `${each.letter} ${each.name}`);
  });
  const canvas = element('canvas', '');
  const surface = new Surface(canvas);
  surface.resize(20, 16);
  surface.fill(0, surface.w, 0, surface.h, colours.idle);
  surface.put();
  items.push(element('li', '', canvas, 'idle'));
  for (const [name, key] of [['chunk', 'chunks'], ['slice', 'slices']]) {
    const n = Math.max(...timelines.map(({run}) => run[key]));
    if (n > 1) items.push(shadesItem(`${name} 0 to ${n - 1}`, Math.min(n, 4)));
  }
  byId('legend').replaceChildren(...items.filter((item) => item));
}

// Returns an item of the legend with `n` boxes from dark to light.
function shadesItem(text, n) {
  const canvas = element('canvas', '');
  const surface = new Surface(canvas);
  surface.resize(20 * n, 16);
  for (let i = 0; i < n; ++i) {
    const gray = packed(mixed(rgbOf('#444444'), [255, 255, 255], 0.5 * i / (n - 1)));
    surface.fill(Math.round(surface.w * i / n), Math.round(surface.w * (i + 1) / n), 0, surface.h, gray);
  }
  surface.put();
  canvas.setAttribute('aria-hidden', 'true');
  return element('li', '', canvas, text);
}

// Returns the height for each timeline with which all end within the first screen, or a fraction of the window's height
// where that leaves too little.
function heightForTimelines() {
  const boxes = timelines.map(({box}) => box.getBoundingClientRect());
  const between = boxes.length > 1 ? boxes[1].top - boxes[0].bottom : 0;
  const border = 2;
  const rest = (innerHeight - boxes[0].top - scrollY - between * (boxes.length - 1) - 8) / boxes.length - border;
  return Math.min(1000, rest >= 200 ? rest : Math.max(200, innerHeight * (boxes.length > 1 ? 0.42 : 0.7)));
}

let timelineHeight = 0;

function layout() {
  const box = byId('timeline');
  const border = 2;
  const wide = box.clientWidth - border;
  view.ratio = Math.min(3, window.devicePixelRatio || 1);
  view.gutter = wide < 520 ? 38 : 64;
  view.width = wide;
  // If one plot has a scroll bar, all are narrowed to keep a common axis.
  for (const timeline of timelines) timeline.layout(timelineHeight);
  view.width = Math.min(wide, ...timelines.map((timeline) => timeline.box.clientWidth));
  for (const timeline of timelines) timeline.layout(timelineHeight);
  for (const curve of curves) curve.layout();
  view.repaint();
}

// Hides the checkboxes of lanes that no run has.
function offerLanes() {
  const has = (kind) => timelines.some(({run}) => run.lanes.some((lane) => lane.kind === kind && lane.last > lane.first));
  byId('show-parts').closest('label').hidden = !has('parts');
  byId('show-links').closest('label').hidden = !has('link');
  byId('show-collectives').closest('label').hidden = !has('collective');
}

// Returns the upper end of the scale of memory curves, in bytes.
function mostMemory(runs) {
  return 1.06 * Math.max(0, ...runs.map((run) => run.memory ? Math.max(run.capacity ?? 0, ...run.memory.peak) : 0));
}

function controls() {
  const middle = () => cursorOwner && cursorOwner.cursor >= 0 ? cursorOwner.run.start[cursorOwner.cursor]
                                                              : (view.t0 + view.t1) / 2;
  byId('zoom-in').addEventListener('click', () => view.zoom(middle(), 2));
  byId('zoom-out').addEventListener('click', () => view.zoom(middle(), 0.5));
  byId('zoom-all').addEventListener('click', () => view.all());
  for (const [id, key] of [['show-parts', 'parts'], ['show-links', 'links'], ['show-collectives', 'collectives'], ['show-path', 'path'],
                           ['show-patterns', 'patterns']]) {
    byId(id).addEventListener('change', (event) => {
      shown[key] = event.target.checked;
      legend();
      layout();
    });
    shown[key] = byId(id).checked;  // a reload keeps the state of checkboxes
  }
  offerLanes();
  let next = -1;
  const search = () => {
    const {terms, error} = parseSearch(byId('search').value);
    next = -1;
    let count = 0;
    for (const timeline of timelines) {
      timeline.found = terms && terms.length > 0 ? searched(timeline.run, terms) : null;
      count += timeline.found ? timeline.found.length : 0;
    }
    byId('found').textContent = error ?? (terms.length > 0 ? `${countText(count)} ${count === 1 ? 'op' : 'ops'}` : '');
    view.repaint();
  };
  byId('search').addEventListener('input', search);
  byId('search').addEventListener('keydown', (event) => {
    if (event.key !== 'Enter') return;
    event.preventDefault();
    const all = timelines.flatMap((timeline) => timeline.found ? [{timeline, size: timeline.found.length}] : []);
    const total = all.reduce((sum, {size}) => sum + size, 0);
    if (total === 0) return;
    next = (next + (event.shiftKey ? total - 1 : 1)) % total;
    let at = next;
    for (const {timeline, size} of all) {
      if (at < size) {
        const op = timeline.found[at];
        const {start, end} = timeline.run;
        // Zoom in until the op is visible.
        const wide = (end[op] - start[op]) * (view.width - view.gutter) / (view.t1 - view.t0);
        if (wide > 0 && wide < 8) view.zoom((start[op] + end[op]) / 2, 30 / wide);
        return timeline.setCursor(op);
      }
      at -= size;
    }
  });
  byId('search').value = '';
}

async function start() {
  for (const table of document.querySelectorAll('table')) sortable(table);
  for (const part of document.querySelectorAll('.needs-script')) part.hidden = false;
  byId('unscripted').hidden = true;
  chooseColours();
  themeButton();
  const names = JSON.parse(byId('run-names').textContent);
  const box = byId('timeline');
  const runs = await Promise.all(names.map((name, index) => loadRun(index, name)));
  view.end = Math.max(1, ...runs.map((run) => run.makespan));
  view.t1 = view.end;
  const letters = runs.map((_, index) => runs.length > 1 ? String.fromCharCode(index < 26 ? 65 + index : 71 + index) : '');
  runs.forEach((run, index) => {
    new Timeline(run, letters[index], box);
  });
  const most = mostMemory(runs);
  runs.forEach((run, index) => {
    if (run.memory && most > 0) curves.push(new Curves(run, letters[index], box, most));
  });
  legend();
  controls();
  timelineHeight = heightForTimelines();
  layout();
  new ResizeObserver(() => layout()).observe(box);
  window.addEventListener('resize', () => {
    timelineHeight = heightForTimelines();
    layout();
  });
}

// Resolves when the page is drawn. A live page continues from here (live.js).
const started = start();
started.then(() => {
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}).catch((error) => {
  byId('trouble').hidden = false;
  byId('trouble').textContent = `The timeline cannot be drawn: ${error.message}. The rest of this page is complete.`;
});
