
// Decodes the data of the runs. The format is specified in traces/report/report_data.h.

const kLetters = ['F', 'B', 'I', 'W'];
const kPasses = 20;  // kinds S and T, drawn as forwards and weight gradients, and from 22 on their transfers
const letterOf = (kind) => kind >= kPasses ? 'ST'[kind & 1] : kLetters[kind & 3];
const isTransfer = (kind) => kind >= kPasses + 2 || (kind >= 12 && kind < 16);
const kCollective = 16;
const kOptimizer = 17;
const kCommunication = 5;  // index in kClasses

// The classes in which ops are drawn. A joint block is drawn half in the class of each of its ops.
const kClasses = [
  {letter: 'F', name: 'forward'},
  {letter: 'B', name: 'backward'},
  {letter: 'I', name: 'input gradient'},
  {letter: 'W', name: 'weight gradient'},
  {letter: 'R', name: 'recomputation'},
  {letter: 'C', name: 'communication'},
  {letter: 'O', name: 'optimizer'},
  {letter: 'D', name: 'dispatch'},
  {letter: 'C', name: 'combine'},
];

function classOf(kind) {
  if (kind < 8) return kind & 3;
  if (kind >= kPasses) return isTransfer(kind) ? kCommunication : kind === kPasses ? 0 : 3;
  if (kind < 12) return 4;
  if (isPart(kind)) return 7 + kind - kDispatch;
  return kind === kOptimizer ? 6 : kCommunication;
}

// Chunks or, on ranks with one chunk, slices are shades: 0 is the color of the class, kShades is half white. An ink, a
// class and a shade, is stored as class << 8 | shade.
const kShades = 240;
const kMaxInks = 48;  // inks of a run up to which averages of columns distinguish shades
const kMaxSums = 16e6;  // the same for the numbers in its prefix sums

function shadeOf(i, n) {
  return n > 1 ? Math.round(kShades * i / (n - 1)) : 0;
}

function bytesOfBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; ++i) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

async function inflated(bytes) {
  if (typeof DecompressionStream === 'undefined') throw new Error('this browser has no DecompressionStream');
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
  return new Response(stream).arrayBuffer();
}

// Returns the columns as typed arrays by name; 64-bit columns as doubles, exact up to 2^53.
function columnsOf(names, buffer) {
  const columns = {};
  let at = 0;
  for (const [name, type, size] of names) {
    if (type === 'i64') {
      const low = new Uint32Array(buffer, at, size);
      const high = new Int32Array(buffer, at + 4 * size, size);
      const values = new Float64Array(size);
      for (let i = 0; i < size; ++i) values[i] = high[i] * 4294967296 + low[i];
      columns[name] = values;
      at += 8 * size;
    } else {
      const Type = {i32: Int32Array, i16: Int16Array, u8: Uint8Array}[type];
      columns[name] = new Type(buffer, at, size);
      at += size * Type.BYTES_PER_ELEMENT;
    }
    at = Math.ceil(at / 4) * 4;
  }
  return columns;
}

// Computes start (in place of gaps) and end times from gaps and durations, within [first, last).
function unrollTimes(gap, duration, end, first, last) {
  let free = 0;
  for (let i = first; i < last; ++i) {
    gap[i] += free;
    free = gap[i] + duration[i];
    end[i] = free;
  }
}

// Returns prefix sums of the time over all ops by ink, in ascending order of inks, to sum any interval of a lane in constant
// time. In runs with very many ops or shades, inks are the plain classes.
function sumsByInk(run) {
  const {ink, partner, partnerOf, start, end, n} = run;
  const found = new Set();
  for (let i = 0; i < n; ++i) if (end[i] > start[i]) found.add(ink[i]);
  for (const each of partner.ink) found.add(each);
  const mask = found.size <= kMaxInks && found.size * n <= kMaxSums ? ~0 : ~255;
  const inks = new Set([...found].map((each) => each & mask));
  return [...inks].sort((x, y) => x - y).map((wanted) => {
    const upTo = new Float64Array(n + 1);
    let total = 0;
    for (let i = 0; i < n; ++i) {
      const fraction = partnerOf ? fractionOfInk(run, i, wanted, mask) : (ink[i] & mask) === wanted ? 1 : 0;
      upTo[i + 1] = total += (end[i] - start[i]) * fraction;
    }
    return {ink: wanted, mask, upTo};
  });
}

// Returns the fraction of op `i` that is drawn with an ink.
function fractionOfInk(run, i, wanted, mask) {
  const first = (run.ink[i] & mask) === wanted ? 1 : 0;
  if (run.kind[i] < 4 || run.kind[i] >= 8) return first;
  return (first + ((run.partner.ink[run.partnerOf[i]] & mask) === wanted ? 1 : 0)) / 2;
}

// Reads and removes the text of a script element: a zlib stream in base64. Returns its contents as an ArrayBuffer.
function unpacked(id) {
  const script = document.getElementById(id);
  const bytes = bytesOfBase64(script.textContent);
  script.remove();
  return inflated(bytes);
}

async function loadRun(index, name) {
  return decodeRun(JSON.parse(document.getElementById('run-' + index).textContent), await unpacked('columns-' + index), name);
}

// Returns the run of a header and the columns that it lists.
function decodeRun(header, buffer, name) {
  const columns = columnsOf(header.columns, buffer);
  const {kind, critical, microbatch, need, slack, gap: start, duration} = columns;
  let ops = {kind, stage: columns.stage, slice: columns.slice, critical, microbatch, need, slack, start,
             end: new Float64Array(kind.length)};
  const lanes = [];
  let first = 0;
  for (const row of header.lanes) {
    const last = first + row.ops;
    unrollTimes(start, duration, ops.end, first, last);
    const lastMicrobatch = new Int32Array(24);
    const lastNeed = new Int32Array(24);
    const lastSlack = new Float64Array(24);
    for (let i = first; i < last; ++i) {
      const k = kind[i];
      microbatch[i] = lastMicrobatch[k] += microbatch[i];
      need[i] = lastNeed[k] += need[i];
      slack[i] = lastSlack[k] += slack[i];
    }
    lanes.push({kind: row.kind, rank: row.rank, peer: row.peer ?? -1, latency: row.latency ?? 0, first, last});
    first = last;
  }
  // Instantaneous ops, which are drawn where a column of pixels is free.
  const instants = [];
  const criticalOps = [];
  for (let i = 0; i < kind.length; ++i) {
    if (duration[i] === 0) instants.push(i);
    if (critical[i]) criticalOps.push(i);
  }
  let parts = null;
  if (header.parts) ({ops, parts} = appendParts(ops, lanes, header.parts, columns));
  const n = ops.kind.length;

  // By op: index of its partner, for joint blocks.
  let partnerOf = null;
  if (columns.partner_kind.length > 0) {
    partnerOf = new Int32Array(n).fill(-1);
    for (let i = 0, joint = 0; i < n; ++i) if (kind[i] >= 4 && kind[i] < 8) partnerOf[i] = joint++;
  }

  const idle = {first: [0], start: columns.idle_gap, end: new Float64Array(columns.idle_gap.length),
                cause: columns.idle_cause, from: columns.idle_from, next: columns.idle_next, need: columns.idle_need};
  for (const count of header.idle) {
    const begin = idle.first.at(-1);
    unrollTimes(idle.start, columns.idle_duration, idle.end, begin, begin + count);
    idle.first.push(begin + count);
  }
  const run = {name, n, ...ops, lanes, parts, idle, partnerOf, instants, criticalOps,
               partner: {kind: columns.partner_kind, stage: columns.partner_stage, slice: columns.partner_slice,
                         microbatch: columns.partner_microbatch},
               memory: header.memory ? loadMemory(header.memory, columns) : null, makespan: header.makespan,
               ranks: header.ranks, sliced: header.sliced, stagesOf: header.stages_of, collectives: header.collectives,
               causes: header.causes, capacity: header.capacity};
  addInks(run);
  run.sums = sumsByInk(run);
  run.classes = [...new Set(run.sums.map(({ink}) => ink >> 8))];
  return run;
}

// Adds the ink of each op and partner, the chunks of each rank by stage, and the numbers of chunks and slices that are drawn
// as shades.
function addInks(run) {
  const {kind, stage, slice, partner, partnerOf} = run;
  run.chunkOf = run.stagesOf.map((stages) => new Map(stages.map((each, chunk) => [each, chunk])));
  run.ink = Uint16Array.from(kind, (each) => classOf(each) << 8);
  partner.ink = Uint16Array.from(partner.kind, (each) => each << 8);
  let slices = 1;
  for (let i = 0; i < run.n; ++i) if (kind[i] < 12 && slice[i] >= slices) slices = slice[i] + 1;
  run.chunks = Math.max(...run.chunkOf.map((chunks) => chunks.size));
  run.slices = run.chunkOf.some((chunks) => chunks.size === 1) ? slices : 1;
  for (const lane of run.lanes) {
    const chunks = run.chunkOf[lane.rank];
    if (lane.kind !== 'compute' || (chunks.size < 2 && slices < 2)) continue;
    const shade = (s, part) => chunks.size > 1 ? shadeOf(chunks.get(s), chunks.size) : shadeOf(part, slices);
    for (let i = lane.first; i < lane.last; ++i) {
      if (kind[i] >= 12) continue;
      run.ink[i] |= shade(stage[i], slice[i]);
      const p = partnerOf ? partnerOf[i] : -1;
      if (p >= 0) partner.ink[p] |= shade(partner.stage[p], partner.slice[p]);
    }
  }
}

function loadMemory(header, columns) {
  const time = columns.memory_time;
  const bytes = header.classes.map((name) => columns['memory_' + name]);
  const total = new Float64Array(time.length);
  const first = [0];
  const peak = [];
  for (const count of header.samples) {
    const begin = first.at(-1);
    let most = 0;
    for (let i = begin; i < begin + count; ++i) {
      if (i > begin) time[i] += time[i - 1];
      for (const of of bytes) {
        if (i > begin) of[i] += of[i - 1];
        total[i] += of[i];
      }
      most = Math.max(most, total[i]);
    }
    peak.push(most);
    first.push(begin + count);
  }
  return {classes: header.classes.map((name) => name === 'keys_values' ? 'keys, values' : name), thinned: header.thinned,
          time, bytes, total, first, peak, worst: peak.indexOf(Math.max(...peak))};
}

// Returns the first index in [first, last) whose value in the ascending `values` is above `x`, by galloping search from
// `first`.
function firstAbove(values, x, first, last) {
  let step = 1;
  let low = first;
  while (low + step < last && values[low + step - 1] <= x) {
    low += step;
    step *= 2;
  }
  let high = Math.min(last, low + step);
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] > x) high = middle; else low = middle + 1;
  }
  return low;
}

// Returns the memory sample of a rank at time `t`.
function sampleAt(memory, rank, t) {
  const begin = memory.first[rank];
  return Math.max(begin, firstAbove(memory.time, t, begin, memory.first[rank + 1]) - 1);
}

function laneOf(run, i) {
  let low = 0;
  let high = run.lanes.length - 1;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (run.lanes[middle].last > i) high = middle; else low = middle + 1;
  }
  return run.lanes[low];
}
