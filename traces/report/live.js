
// Simulates the scenario of a live page again whenever the reader changes it.

// The numbers that a reader changes, with a field or a slider. `write` sets one in a scenario; `shown` tells whether it
// applies to a family, `model` that it needs a model. Times are those of uniform costs.
const kKnobs = [
  {id: 'pp', label: 'Ranks (pp)', low: 1, high: 64, whole: true, write: (doc, n) => { doc.parallelism.pp = n; }},
  {id: 'microbatches', label: 'Microbatches', low: 1, high: 256, whole: true, write: (doc, n) => {
    doc.batch.microbatches = n;
    delete doc.batch.global_batch;
  }},
  {id: 'vpp', label: 'Chunks per rank', low: 1, high: 16, whole: true, shown: (family) => family.fixed_chunks === 0,
   write: (doc, n) => { doc.parallelism.vpp = n; }},
  {id: 'slices', label: 'Slices', low: 1, high: 32, whole: true, shown: (family) => family.sliced, write: (doc, n) => {
    doc.schedule.slices = n;
    delete doc.schedule.slice_lengths;
  }},
  {id: 'batches', label: 'Batches', low: 1, high: 16, whole: true, shown: (family) => family.asynchronous,
   write: (doc, n) => { doc.schedule.batches = n; }},
  {id: 'tp', label: 'Tensor parallel (tp)', low: 1, high: 64, whole: true, model: true, write: (doc, n) => { doc.parallelism.tp = n; }},
  {id: 'dp', label: 'Replicas (dp)', low: 1, high: 1024, whole: true, model: true, write: (doc, n) => {
    doc.parallelism.dp = n;
    delete doc.parallelism.gpus;
  }},
  {id: 'ep', label: 'Expert parallel (ep)', low: 1, high: 64, whole: true, model: true, write: (doc, n) => { doc.parallelism.ep = n; }},
  {id: 'mbs', label: 'Sequences per microbatch', low: 1, high: 16, whole: true, model: true,
   write: (doc, n) => { doc.batch.micro_batch = n; }},
  {id: 'seq', label: 'Tokens per sequence', low: 1, high: 131072, whole: true, model: true,
   write: (doc, n) => { doc.batch.sequence_length = n; }},
  {id: 'f', label: 'F: forward, s', time: true},
  {id: 'b', label: 'I: input gradient, s', time: true},
  {id: 'w', label: 'W: weight gradient, s', time: true},
  {id: 'comm', label: 'Transfer, s', time: true},
];
const kAuto = 'auto';
const kOwn = 'own';
const kNoFamily = {name: '', summary: '', source: '', fixed_chunks: 1, sliced: false, grouped: false, asynchronous: false};

const live = {
  run: null,        // the engine
  first: null,      // the first request: of the page or of its address
  beside: null,     // the request of the run that is kept
  choices: null,    // names of models and clusters
  families: new Map(),
  inputs: {},       // fields by id of knob
  changed: new Set(),
  frames: [],       // of the latest updates: {simulate, draw}, ms
  waiting: 0,  // the frame of an update
  tables: 0,        // timer
  shown: null,      // the request of the run that is shown
};

const isUniform = (doc) => (doc.cost?.kind ?? (doc.model ? 'analytic' : 'uniform')) === 'uniform';

// Returns the mean of a time of the uniform costs, in seconds.
function meanTime(cost, key) {
  const value = cost?.[key];
  if (Array.isArray(value)) return value.reduce((sum, each) => sum + each, 0) / value.length;
  if (value === undefined && cost?.stages) return meanTime({[key]: cost.stages.map((stage) => stage[key])}, key);
  return value ?? (key === 'comm' ? 0 : 1);
}

function firstValues() {
  const {scenario, sizes} = live.first;
  const times = {f: 1, b: 1, w: 1, comm: 0};
  const kTokens = 4096;
  if (isUniform(scenario)) for (const key of Object.keys(times)) times[key] = meanTime(scenario.cost, key);
  const {tp, ep} = scenario.parallelism ?? {};
  return {...sizes, tp: tp ?? 1, ep: ep ?? 1, seq: sizes.seq || kTokens, ...times};
}

// Returns the name of a model or cluster of a scenario; that it has one of its own; or '' without one.
function nameOf(part, names) {
  const name = part?.name ?? part;
  return part === undefined ? '' : names.includes(name) && Object.keys(part.name ? part : {}).every((key) => ['name', 'nodes', 'gpus_per_node'].includes(key)) ? name : kOwn;
}

function ownName() {
  const {name} = live.first.scenario.schedule ?? {};
  return live.first.schedule !== undefined ? name : 'schedule.csv';
}

// Returns the family that is chosen; one without parameters for others.
const chosenFamily = () => live.families.get(byId('family').value) ?? kNoFamily;

// Removes what the chosen schedule does not accept.
function adapt(doc, choice) {
  const family = chosenFamily();
  const own = choice === kOwn;
  if (own) {
    delete doc.parallelism.pp;
    delete doc.batch.microbatches;
    delete doc.batch.global_batch;
  }
  if (own || (choice !== kAuto && family.fixed_chunks > 0)) delete doc.parallelism.vpp;
  const drop = [];
  if (own || (!family.sliced && choice !== kAuto)) drop.push('slices', 'slice_lengths', 'slicing');
  if (!family.grouped) drop.push('group');
  if (!family.asynchronous) drop.push('batches');
  if (choice !== kAuto) drop.push('memory_cap', 'placement', 'time_budget_s');
  for (const key of drop) delete doc.schedule[key];
}

// Returns the request for the values of the controls. What the reader did not change is as in the first scenario.
function currentRequest() {
  const doc = structuredClone(live.first.scenario);
  const choice = byId('family').value;
  for (const section of ['parallelism', 'batch', 'schedule']) doc[section] ??= {};
  if (live.changed.has('family')) {
    doc.schedule.name = choice === kOwn ? ownName() : choice;
    adapt(doc, choice);
  }
  setModel(doc);
  for (const knob of kKnobs) {
    if (!live.changed.has(knob.id) || live.inputs[knob.id].closest('.knob').hidden) continue;
    const value = Number(live.inputs[knob.id].value);
    if (knob.write) knob.write(doc, value);
  }
  if (kKnobs.some(({id, time}) => time && live.changed.has(id)) || live.changed.has('uniform') || live.changed.has('model')) setTimes(doc);
  const request = {scenario: doc};
  if (choice === kOwn) request.schedule = byId('csv').value;
  const cap = byId('cap').value.trim();
  if (cap) {
    request.cap = /^[\d.]+$/.test(cap) ? cap + 'mb' : cap;
    if (choice === kAuto) doc.schedule.memory_cap = request.cap;
  }
  if (choice === kAuto) doc.schedule.time_budget_s = 0;
  return request;
}

// Sets the model and the cluster that are chosen: equal times without a model.
function setModel(doc) {
  const model = byId('model').value;
  const recompute = byId('recompute').value;
  if (live.changed.has('recompute') && model) doc.parallelism.recompute = recompute;
  if (live.changed.has('cluster') || (model && !doc.cluster)) doc.cluster = byId('cluster').value;
  if (!live.changed.has('model')) return;
  if (model === '') {
    const {pp, vpp} = doc.parallelism;
    doc.parallelism = vpp === undefined ? {pp} : {pp, vpp};
    for (const key of ['model', 'cluster', 'cost', 'software', 'kernel_times', 'calibration']) delete doc[key];
    for (const key of ['sequence_length', 'micro_batch', 'lengths']) delete doc.batch[key];
    return;
  }
  if (model !== kOwn) doc.model = model;
  delete doc.parallelism.stage_layers;
  if (isUniform(doc)) delete doc.cost;
  if (!doc.batch.microbatches && !doc.batch.global_batch) doc.batch.microbatches = Number(live.inputs.microbatches.value);
  doc.batch.sequence_length ??= Number(live.inputs.seq.value);
}

// Whether the run has the times of the controls.
const hasTimes = () => byId('model').value === '' || byId('uniform').checked;

function setTimes(doc) {
  if (!hasTimes()) {
    if (live.changed.has('uniform') && isUniform(doc)) delete doc.cost;
    return;
  }
  if (!isUniform(doc)) doc.cost = {kind: 'uniform'};
  doc.cost ??= {};
  doc.cost.kind = 'uniform';
  for (const {id, time} of kKnobs) {
    if (!time || (!live.changed.has(id) && doc.cost[id] !== undefined)) continue;
    if (doc.cost.stages && id !== 'comm') delete doc.cost.stages;
    doc.cost[id] = Number(live.inputs[id].value);
  }
}

// --- Controls --------------------------------------------------------------------------------------------------------

// Returns a field with a slider beside it.
function knobOf({id, label, low, high, whole, time}, value, longest) {
  const most = time ? niceStep(3 * longest) : high;
  const field = element('input', '');
  const slider = element('input', '');
  field.id = 'knob-' + id;
  field.type = 'number';
  slider.type = 'range';
  for (const input of [field, slider]) {
    input.min = time ? 0 : low;
    input.max = input === slider ? Math.max(most, value) : '';
    input.step = whole ? 1 : input === slider ? most / 500 : 'any';
    input.value = value;
  }
  slider.setAttribute('aria-label', `${label}, slider`);
  const name = element('label', '', label);
  name.htmlFor = field.id;
  const follow = (from, to) => from.addEventListener('input', () => {
    if (from.value === '' || !from.checkValidity()) return;
    to.value = from.value;
    live.changed.add(id);
    scheduleUpdate();
  });
  follow(field, slider);
  follow(slider, field);
  live.inputs[id] = field;
  return element('div', 'knob', name, field, slider);
}

// Returns a list of choices, {value: text}, with a label before it.
function choiceOf(id, label, options, value) {
  const select = element('select', '');
  select.id = id;
  for (const [each, text] of Object.entries(options)) {
    const option = element('option', '', text);
    option.value = each;
    select.append(option);
  }
  select.value = value;
  select.addEventListener('change', () => {
    live.changed.add(id);
    if (id === 'family' && select.value === kOwn) {
      byId('own').open = true;
      if (!byId('csv').value.trim()) fillOwn();
    }
    offerKnobs();
    scheduleUpdate();
  });
  const name = element('label', '', label);
  name.htmlFor = id;
  return element('div', 'knob wide', name, select);
}

const named = (names) => Object.fromEntries(names.map((name) => [name, name]));

// Returns the choices of the catalogue for a part of the first scenario, which may have one of its own.
function catalogueOf(id, label, names, part, none) {
  const name = nameOf(part, names);
  return choiceOf(id, label, {...none, ...(name === kOwn ? {[kOwn]: part.name ?? 'its own'} : {}), ...named(names)}, name);
}

// Shows the controls that apply to the chosen schedule.
function offerKnobs() {
  const family = chosenFamily();
  const choice = byId('family').value;
  const model = byId('model').value !== '';
  for (const id of ['cluster', 'recompute']) byId(id).closest('.knob').hidden = !model;
  byId('uniform').closest('.tick').hidden = !model;
  for (const knob of kKnobs) {
    const own = choice === kOwn && !knob.time && !knob.model;
    const applies = knob.time ? hasTimes() : knob.model ? model : !knob.shown || knob.shown(family);
    live.inputs[knob.id].closest('.knob').hidden = own || !applies;
  }
  byId('summary').textContent = choice === kAuto ? 'searched by list scheduling for the times and the memory cap' :
    choice === kOwn ? 'the CSV below' : `${family.summary} (${family.source})`;
}

function buildControls() {
  const {scenario} = live.first;
  const values = firstValues();
  const name = scenario.schedule?.name ?? '1f1b';
  const aliased = [...live.families.values()].find((family) => family.aliases.includes(name));
  const choice = live.first.schedule !== undefined ? kOwn : live.families.has(name) || name === kAuto ? name : aliased?.name ?? '1f1b';
  const longest = Math.max(values.f, values.b, values.w, values.comm) || 1;
  const form = byId('knobs');
  const summary = element('p', 'family wide');
  summary.id = 'summary';
  live.inputs = {};
  live.changed.clear();
  const {models, clusters} = live.choices;
  const box = element('input', '');
  box.type = 'checkbox';
  box.id = 'uniform';
  box.checked = scenario.model !== undefined && isUniform(scenario);
  box.addEventListener('change', () => {
    live.changed.add('uniform');
    offerKnobs();
    scheduleUpdate();
  });
  form.replaceChildren(
    catalogueOf('model', 'Model', models, scenario.model, {'': 'none: equal times'}),
    catalogueOf('cluster', 'Cluster', clusters, scenario.cluster ?? 'dgx-h100', {}),
    choiceOf('family', 'Schedule', {...named([...live.families.keys()]), [kAuto]: 'auto: search an order', [kOwn]: 'your own (CSV)'}, choice),
    summary, ...kKnobs.filter(({time}) => !time).map((knob) => knobOf(knob, values[knob.id])),
    choiceOf('recompute', 'Recompute', named(['none', 'selective', 'full']), scenario.parallelism?.recompute ?? 'none'),
    element('label', 'tick wide', box, 'equal times for all stages'));
  form.append(...kKnobs.filter(({time}) => time).map((knob) => knobOf(knob, values[knob.id], longest)));
  const cap = element('input', '');
  cap.id = 'cap';
  cap.type = 'text';
  cap.placeholder = 'none';
  cap.title = 'Microbatches in flight ("4"), or bytes ("60GiB")';
  cap.value = (live.first.cap ?? scenario.schedule?.memory_cap ?? '').replace(/mb$/, '');
  cap.addEventListener('input', scheduleUpdate);
  const label = element('label', '', 'Memory cap');
  label.htmlFor = 'cap';
  form.append(element('div', 'knob', label, cap));
  byId('csv').value = live.first.schedule ?? '';
  offerKnobs();
}

function fillOwn() {
  const {status, header} = live.run({...live.shown, tables: false, csv: true});
  if (status === 0 && header.csv) byId('csv').value = header.csv;
  else refuse(header.csv_error ?? header);
}

// --- Updates ---------------------------------------------------------------------------------------------------------

function scheduleUpdate() {
  if (live.waiting) return;
  live.waiting = requestAnimationFrame(() => {
    live.waiting = 0;
    update();
  });
}

// Shows why the values of the controls are no valid run. The ops of a cycle are listed, one per line.
function refuse(message) {
  const box = byId('refusal');
  const [reason, cycle] = message.includes(' -> ') ? message.split(/: (?=[A-Z]\()/) : [message.replace(/^scenario: /, '')];
  const parts = [element('p', '', reason)];
  if (cycle) parts.push(element('ol', '', ...cycle.split(' -> ').map((op) => element('li', '', op))));
  box.replaceChildren(...parts);
  box.hidden = false;
  document.documentElement.dataset.refused = '';
}

// Replaces what follows the heading of a section. `html` comes from the engine, which escapes all names in it.
function fill(heading, html) {
  const head = byId(heading);
  const section = head.closest('section');
  while (section.lastChild !== head) section.lastChild.remove();
  section.insertAdjacentHTML('beforeend', html);
  for (const table of section.querySelectorAll('table')) sortable(table);
}

const withBeside = (request) => live.beside ? {...request, beside: live.beside} : request;

function update() {
  const begin = performance.now();
  const request = currentRequest();
  const {status, header, columns} = live.run({...withBeside(request), tables: false});
  const simulated = performance.now();
  if (status !== 0) return refuse(header);
  byId('refusal').hidden = true;
  delete document.documentElement.dataset.refused;
  live.shown = request;
  showRun(decodeRun(header.run, columns, header.name));
  fill('h-headline', header.headline);
  view.paint();
  const end = performance.now();
  if (live.frames.push({simulate: simulated - begin, draw: end - simulated}) > 2000) live.frames.shift();
  byId('spent').textContent = `${countText(timelines[0].run.parts?.first ?? timelines[0].run.n)} ops: simulated in ${(simulated - begin).toFixed(1)} ms, drawn in ${(end - simulated).toFixed(1)} ms`;
  clearTimeout(live.tables);
  live.tables = setTimeout(showRest, 200);
  return undefined;
}

function showRun(run) {
  const [timeline] = timelines;
  const whole = view.whole();
  const before = timeline.run;
  card.hide();
  timeline.setRun(run);
  view.end = Math.max(1, ...timelines.map((each) => each.run.makespan));
  view.mark = null;
  cursorOwner = null;
  if (whole || view.t0 >= view.end) [view.t0, view.t1] = [0, view.end];
  else view.t1 = Math.min(view.t1, view.end);
  showCurves();
  const key = (each) => [each.chunks, each.slices, each.classes.length, ...each.classes].join();
  if (key(before) !== key(run)) legend();
  offerLanes();
  if (byId('search').value) byId('search').dispatchEvent(new Event('input'));
  layout();
}

// Draws the memory of all runs on one scale.
function showCurves() {
  const most = mostMemory(timelines.map((each) => each.run));
  if (curves.length === timelines.length && timelines.every(({run}) => run.memory)) {
    return curves.forEach((curve, index) => curve.setRun(timelines[index].run, most));
  }
  for (const {plot} of curves) plot.remove();
  view.painters = view.painters.filter((painter) => !curves.includes(painter));
  curves.length = 0;
  for (const {run, letter} of timelines) {
    if (run.memory && most > 0) curves.push(new Curves(run, letter, byId('timeline'), most));
  }
  return undefined;
}

// Keeps the run of a request beside those that follow, or none.
function keepBeside(request) {
  const old = timelines[1];
  if (old) {
    old.plot.remove();
    timelines.pop();
    view.painters = view.painters.filter((painter) => painter !== old);
  }
  live.beside = null;
  if (request) {
    const {status, header, columns} = live.run({...request, tables: false});
    if (status !== 0) return refuse(header);
    live.beside = request;
    const kept = new Timeline(decodeRun(header.run, columns, header.name), 'B', byId('timeline'));
    timelines[0].plot.after(kept.plot);
  }
  timelines[0].setLetter(request ? 'A' : '');
  byId('keep').setAttribute('aria-pressed', String(request !== null));
  timelineHeight = heightForTimelines();
  return scheduleUpdate();
}

// Shows what need not follow every movement: tables, scenario, command, and a sentence for screen readers.
function showRest() {
  const {status, header} = live.run(withBeside(live.shown));
  if (status !== 0) return;
  const changed = live.changed.size > 0 || document.documentElement.dataset.changed !== undefined;
  if (changed || live.beside) history.replaceState(null, '', '#' + encodeURIComponent(JSON.stringify(withBeside(live.shown))));
  fill('h-idle', header.idle);
  fill('h-ranks', header.ranks);
  byId('h-assumed')?.closest('section').remove();
  byId('h-command').closest('section').insertAdjacentHTML('beforebegin', header.assumed);
  if (changed) {
    document.documentElement.dataset.changed = '';
    const own = live.shown.schedule === undefined ? '' : ` and the CSV as ${live.shown.scenario.schedule.name}`;
    document.querySelector('pre.command').textContent =
      `sluice simulate scenario.json   # the scenario below, saved as scenario.json${own}`;
    document.querySelector('pre.scenario').textContent = JSON.stringify(live.shown.scenario, null, 2) + '\n';
    document.title = document.querySelector('h1').textContent = header.name;
  }
  const cards = [...document.querySelectorAll('.cards > div')].slice(0, 3);
  byId('live').textContent = cards.map((each) => `${each.querySelector('dt').textContent} ${each.querySelector('strong').textContent}`).join(', ');
}

// Starts from the run in the address of the page, or from that of the page itself.
function open() {
  cancelAnimationFrame(live.waiting);  // of the run before, which would hide that the address is refused
  live.waiting = 0;
  live.first = JSON.parse(byId('request').textContent);
  let beside = null;
  if (location.hash.length > 1) {
    try {
      const {beside: other, ...request} = JSON.parse(decodeURIComponent(location.hash.slice(1)));
      const {status, header} = live.run({...request, tables: false});
      if (status !== 0) throw new Error(header);
      live.first = {...request, sizes: header.sizes};
      document.documentElement.dataset.changed = '';
      beside = other ?? null;
    } catch (error) {
      live.shown ??= live.first;
      buildControls();
      return refuse(`the address of this page has no valid run: ${error.message}`);
    }
  }
  live.shown = {...live.first, sizes: undefined};
  buildControls();
  if (beside || live.beside) keepBeside(beside);
  // A search of the command is longer than the page's: its result stays until the reader changes something.
  if (live.first.scenario.schedule?.name !== kAuto || location.hash) update();
  return undefined;
}

async function startLive() {
  await started;
  live.run = await startEngine(await unpacked('engine'));
  live.choices = live.run({families: true}).header;
  for (const family of live.choices.families) live.families.set(family.name, family);
  open();
  addEventListener('hashchange', open);
  byId('knobs').addEventListener('submit', (event) => event.preventDefault());
  byId('csv').addEventListener('input', () => {
    byId('family').value = kOwn;
    live.changed.add('family');
    offerKnobs();
    scheduleUpdate();
  });
  byId('own-fill').addEventListener('click', fillOwn);
  byId('own-run').addEventListener('click', () => byId('csv').dispatchEvent(new Event('input')));
  byId('reset').addEventListener('click', () => {
    buildControls();
    scheduleUpdate();
  });
  byId('keep').addEventListener('click', () => keepBeside(live.beside ? null : live.shown));
  document.documentElement.dataset.live = String(Math.round(performance.now()));
}

startLive().catch((error) => {
  byId('controls').hidden = true;
  byId('trouble').hidden = false;
  byId('trouble').textContent = `The page cannot simulate: ${error.message}. The rest of it is complete.`;
});
