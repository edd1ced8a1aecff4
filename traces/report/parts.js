
// Dispatch and combine of layers with experts: parts of ops, on a lane of their own below each rank's compute lane.

const kDispatch = 18;  // kinds of parts
const kCombine = 19;

const isPart = (kind) => kind >= kDispatch && kind < kPasses;

// Appends the parts within the ops of all compute lanes to `ops` (arrays by op), and their lanes to `lanes`. Returns what only
// parts have; `first` is the index of the first part.
function appendParts(ops, lanes, {names, merged}, columns) {
  const {part_pattern: patternOf, pattern_parts: sizes, part_gap: from, part_duration: duration} = columns;
  const to = new Float64Array(duration.length);
  const firstOf = [0];  // by pattern
  for (const size of sizes) {
    const begin = firstOf.at(-1);
    unrollTimes(from, duration, to, begin, begin + size);
    firstOf.push(begin + size);
  }
  const n = ops.kind.length;
  let total = 0;
  for (const pattern of patternOf) if (pattern >= 0) total += sizes[pattern];
  const kinds = names.map((name) => name.startsWith('dispatch') ? kDispatch : kCombine);
  const forward = names.map((name) => name.endsWith('(F)'));
  const all = {};
  for (const [name, values] of Object.entries(ops)) {
    all[name] = new values.constructor(n + total);
    all[name].set(values);
  }
  const parts = {first: n, names, merged, op: new Int32Array(total), at: new Int32Array(total), name: columns.part_name,
                 hidden: columns.part_hidden, layer: columns.part_layer};
  let joint = 0;
  let i = n;
  for (const lane of lanes.filter(({kind}) => kind === 'compute')) {
    const begin = i;
    for (let op = lane.first; op < lane.last; ++op) {
      const isJoint = ops.kind[op] >= 4 && ops.kind[op] < 8;
      const partner = isJoint ? joint++ : -1;
      const pattern = patternOf[op];
      if (pattern < 0) continue;
      for (let at = firstOf[pattern]; at < firstOf[pattern + 1]; ++at, ++i) {
        const name = parts.name[at];
        // A part belongs to one of the two ops of a joint block.
        const ofPartner = isJoint && !merged && forward[name] !== (ops.kind[op] === 4);
        all.start[i] = ops.start[op] + from[at];
        all.end[i] = ops.start[op] + to[at];
        all.kind[i] = kinds[name];
        all.stage[i] = ofPartner ? columns.partner_stage[partner] : ops.stage[op];
        all.slice[i] = ofPartner ? columns.partner_slice[partner] : ops.slice[op];
        all.microbatch[i] = ofPartner ? columns.partner_microbatch[partner] : ops.microbatch[op];
        all.need[i] = op;
        parts.op[i - n] = op;
        parts.at[i - n] = at;
      }
    }
    lanes.push({kind: 'parts', rank: lane.rank, peer: -1, latency: 0, first: begin, last: i});
  }
  return {ops: all, parts};
}

// Returns "D3" or "C3" of a forward, "d3" or "c3" of a backward.
function labelOfPart(run, i) {
  const {parts} = run;
  const letter = run.kind[i] === kDispatch ? 'D' : 'C';
  const name = parts.names[parts.name[parts.at[i - parts.first]]];
  const slice = run.sliced ? '.' + run.slice[i] : '';
  return (name.endsWith('(F)') || parts.merged ? letter : letter.toLowerCase()) + run.microbatch[i] + slice;
}

function describePart(run, i) {
  const {parts} = run;
  const at = parts.at[i - parts.first];
  const op = parts.op[i - parts.first];
  const {rank} = laneOf(run, i);
  const duration = run.end[i] - run.start[i];
  const pairs = [['rank', String(rank)], ['stage', String(run.stage[i])], ['microbatch', String(run.microbatch[i])]];
  if (run.sliced) pairs.push(['slice', String(run.slice[i])]);
  if (parts.layer[at] >= 0) pairs.push(['layer', String(parts.layer[at])]);
  pairs.push(['time', `${timeText(run.start[i], 6)} to ${timeText(run.end[i], 6)}`], ['duration', timeText(duration)],
             ['hidden', `${timeText(parts.hidden[at])} (${percentText(parts.hidden[at], duration)})`]);
  const several = parts.merged ? ' Parts of several layers, drawn as one.' : '';
  return {title: parts.names[parts.name[at]], pairs, sentences: [`Within ${labelOf(run, op)} on rank ${rank}.${several}`]};
}
