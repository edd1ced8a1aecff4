
// Describes ops and idle intervals as text: for the tooltip and for screen readers.

const kCauseWords = {warm_up: 'warm-up', drain: 'drain', sender: 'sender', slice: 'slice', link: 'link',
                     optimizer: 'optimizer', host: 'host copy', other: 'other'};
const toHost = (lane) => lane.kind.endsWith(' host');

// Returns the label of an op: letter, microbatch, slice.
function labelOf(run, i) {
  const kind = run.kind[i];
  if (isPart(kind)) return labelOfPart(run, i);
  if (kind === kCollective) return run.collectives[run.stage[i]].name;
  if (kind === kOptimizer) return 'O' + run.microbatch[i];
  const slice = (s) => run.sliced ? '.' + s : '';
  const op = (letter) => letter + run.microbatch[i] + slice(run.slice[i]);
  if (isTransfer(kind) && toHost(laneOf(run, i))) return (kind === 12 ? 'offload ' : 'reload ') + op('F');
  if (isTransfer(kind)) return 'send ' + op(letterOf(kind));
  if (kind >= kPasses) return op(letterOf(kind));
  if (kind >= 8) return op('R');
  if (kind < 4) return op(kLetters[kind]);
  const p = run.partnerOf[i];
  const {partner} = run;
  return op(kLetters[kind & 3]) + '+' + kLetters[partner.kind[p]] + partner.microbatch[p] + slice(partner.slice[p]);
}

// Returns the label without the verb, which the lane of a transfer implies.
function shortLabelOf(run, i) {
  const text = labelOf(run, i);
  return text.replace(/^(send|offload|reload) /, '');
}

// Returns "F3 on rank 1", with the stage if the rank has several.
function placeOf(run, i) {
  const lane = laneOf(run, i);
  const where = lane.kind === 'link' ? ` from rank ${lane.rank} to rank ${lane.peer}` : ` on rank ${lane.rank}`;
  const stage = run.kind[i] < kCollective && run.stagesOf[lane.rank].length > 1 ? ` (stage ${run.stage[i]})` : '';
  return labelOf(run, i) + where + stage;
}

function idleRange(run, rank) {
  return [run.idle.first[rank], run.idle.first[rank + 1]];
}

// Returns the idle intervals directly before op `i` of a compute lane, in order.
function idleBefore(run, i) {
  const lane = laneOf(run, i);
  if (lane.kind !== 'compute') return [];
  const [first, last] = idleRange(run, lane.rank);
  const found = [];
  for (let k = firstAbove(run.idle.start, run.start[i], first, last) - 1; k >= first; --k) {
    if (run.idle.next[k] !== i) break;
    found.unshift(k);
  }
  return found;
}

// Returns "2 s for F3 on rank 0 (warm-up)".
function idleText(run, k) {
  const {idle} = run;
  const cause = run.causes[idle.cause[k]];
  const long = timeText(idle.end[k] - idle.start[k]);
  const word = kCauseWords[cause];
  if (idle.need[k] >= 0) return `${long} for ${placeOf(run, idle.need[k])} (${word})`;
  if (idle.from[k] >= 0) return `${long} for rank ${idle.from[k]} (${word})`;
  return `${long} (${word})`;
}

function waitText(run, i) {
  const waits = idleBefore(run, i);
  const need = run.need[i];
  if (waits.length > 0) return 'Waited ' + waits.map((k) => idleText(run, k)).join(', then ') + '.';
  if (need < 0) return 'No dependencies.';
  const lane = laneOf(run, i);
  const other = laneOf(run, need);
  if (lane.kind === 'compute') return `Did not wait. Last dependency: ${placeOf(run, need)}.`;
  if (lane === other) return `Waited for ${placeOf(run, need)} to release the lane.`;
  return `Waited for ${placeOf(run, need)}.`;
}

// Returns a title, pairs of term and value, and sentences.
function describeOp(run, i) {
  const kind = run.kind[i];
  if (isPart(kind)) return describePart(run, i);
  const lane = laneOf(run, i);
  const pairs = [];
  pairs.push(['rank', lane.kind === 'link' ? `${lane.rank} to ${lane.peer}` : String(lane.rank)]);
  const stages = run.stagesOf[lane.rank];
  const stageText = (stage) => {
    const chunk = stages.indexOf(stage);
    return stages.length > 1 && chunk >= 0 ? `${stage} (chunk ${chunk})` : String(stage);
  };
  if (kind === kCollective) {
    const {stage, bytes} = run.collectives[run.stage[i]];
    if (stage >= 0) pairs.push(['stage', String(stage)]);
    pairs.push(['step', String(run.microbatch[i])]);
    if (bytes > 0) pairs.push(['bytes', bytesText(bytes)]);
  } else {
    pairs.push(['stage', stageText(run.stage[i])]);
    pairs.push([kind === kOptimizer ? 'step' : 'microbatch', String(run.microbatch[i])]);
    if (run.sliced && kind !== kOptimizer) pairs.push(['slice', String(run.slice[i])]);
  }
  if (kind >= 4 && kind < 8) {
    const p = run.partnerOf[i];
    const {partner} = run;
    pairs.push(['with', `${kLetters[partner.kind[p]]}${partner.microbatch[p]}, stage ${stageText(partner.stage[p])}` +
                        (run.sliced ? `, slice ${partner.slice[p]}` : '')]);
  }
  pairs.push(['time', `${timeText(run.start[i], 6)} to ${timeText(run.end[i], 6)}`]);
  pairs.push(['duration', timeText(run.end[i] - run.start[i])]);
  if (lane.latency > 0) pairs.push(['arrives', timeText(run.end[i] + lane.latency, 6)]);
  pairs.push(['slack', run.slack[i] > 0 ? timeText(run.slack[i]) : run.critical[i] ? '0, on the critical path'
                                                                                   : '0, on a critical path']);
  if (run.memory && lane.kind === 'compute') {
    const held = run.memory.total[sampleAt(run.memory, lane.rank, run.start[i])];
    pairs.push(['memory', `${bytesText(held)} on rank ${lane.rank} at its start`]);
  }
  const c = classOf(kind);
  const what = kind === kCollective ? 'collective' : isTransfer(kind) ? 'transfer' :
    kind >= 4 && kind < 8 ? 'joint block' : kClasses[c].name;
  const label = labelOf(run, i);
  return {title: label.length > 9 ? label : `${label}, ${what}`, pairs, sentences: [waitText(run, i)]};
}

function describeIdle(run, k) {
  const {idle} = run;
  const rank = firstAbove(idle.first, k, 0, idle.first.length) - 1;
  const pairs = [['rank', String(rank)], ['time', `${timeText(idle.start[k], 6)} to ${timeText(idle.end[k], 6)}`],
                 ['cause', kCauseWords[run.causes[idle.cause[k]]]]];
  if (idle.next[k] >= 0) pairs.push(['next op', labelOf(run, idle.next[k])]);
  return {title: `Idle for ${timeText(idle.end[k] - idle.start[k])}`, pairs, sentences: [`Waits ${idleText(run, k)}.`]};
}

function spoken(description) {
  const pairs = description.pairs.map(([term, value]) => `${term} ${value}`).join(', ');
  return `${description.title}. ${pairs}. ${description.sentences.join(' ')}`;
}

// The tooltip, at the pointer or cursor and within the window.
const card = {
  show(description, x, y) {
    const box = document.getElementById('card');
    const list = element('dl', '');
    for (const [term, value] of description.pairs) list.append(element('dt', '', term), element('dd', '', value));
    box.replaceChildren(element('b', '', description.title), list,
                        ...description.sentences.map((text) => element('p', '', text)));
    box.hidden = false;
    const room = 8;
    const {width, height} = box.getBoundingClientRect();
    const right = x + 14 + width + room <= innerWidth ? x + 14 : x - 14 - width;
    const below = y + 16 + height + room <= innerHeight ? y + 16 : y - 12 - height;
    const left = Math.max(room, Math.min(right, innerWidth - width - room));
    const top = Math.max(room, Math.min(below, innerHeight - height - room));
    box.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  },
  hide() { document.getElementById('card').hidden = true; },
};

// Parses a search: terms such as "F3", "mb 3", "stage 2", "chunk 1", "slice 1", "rank 0", "send F3", "optimizer", all of
// which must match. Terms are separated by blanks, commas, semicolons or plus signs, as in the labels of joint blocks.
function parseSearch(text) {
  const terms = [];
  const names = kClasses.map(({name}) => name.replace(' ', '\\s+')).join('|');
  const pattern = new RegExp('(mb|microbatch|stage|chunk|slice|rank|step)\\s*[:=]?\\s*(\\d+)(?![a-z0-9])|' +
    `(?:(send|transfer|collective|joint|recompute)s?|(${names}))(?![a-z])|` +
    '([fbiwrco])(\\d+)?(?:\\.(\\d+))?(?![a-z0-9])|([^\\s,;+]+)', 'gi');
  for (const [, key, number, word, name, letter, microbatch, slice, unknown] of text.matchAll(pattern)) {
    if (unknown) return {error: `unknown term: ${unknown}`};
    if (key) terms.push({key: key.toLowerCase(), number: Number(number)});
    if (word) terms.push({key: word.toLowerCase()});
    const plain = name && name.toLowerCase().replace(/\s+/, ' ');
    const named = name && kClasses.findIndex((each) => each.name === plain);
    if (name) terms.push(named > 6 ? {key: 'part', kind: kDispatch + named - 7} : {key: 'op', letter: kClasses[named].letter});
    if (letter) terms.push({key: 'op', letter: letter.toUpperCase(), microbatch, slice});
  }
  return {terms};
}

// Returns the ops that match all terms, in ascending order.
function searched(run, terms) {
  const found = [];
  const sends = terms.some(({key}) => key === 'send' || key === 'transfer');
  const opIs = (kind, microbatch, slice, term) => {
    const letter = kind === kOptimizer ? 'O' : kind === kCollective ? 'C' : kind >= 8 && kind < 12 ? 'R' : letterOf(kind);
    return letter === term.letter && (!term.microbatch || Number(term.microbatch) === microbatch) &&
      (!term.slice || Number(term.slice) === slice);
  };
  for (const lane of run.lanes) {
    const chunks = run.chunkOf[lane.rank];
    for (let i = lane.first; i < lane.last; ++i) {
      const kind = run.kind[i];
      const transfer = isTransfer(kind);
      const p = kind >= 4 && kind < 8 ? run.partnerOf[i] : -1;
      const {partner} = run;
      const either = (column, partners, value) => column[i] === value || (p >= 0 && partners[p] === value);
      const fits = (term) => {
        switch (term.key) {
          case 'mb':
          case 'microbatch': return (kind < 16 || isPart(kind)) && either(run.microbatch, partner.microbatch, term.number);
          case 'step': return (kind === kCollective || kind === kOptimizer) && run.microbatch[i] === term.number;
          case 'stage': return kind === kCollective ? run.collectives[run.stage[i]].stage === term.number :
            either(run.stage, partner.stage, term.number);
          case 'chunk': return kind < 12 && chunks.size > 1 &&
            (chunks.get(run.stage[i]) === term.number || (p >= 0 && chunks.get(partner.stage[p]) === term.number));
          case 'slice': return (kind < 16 || isPart(kind)) && either(run.slice, partner.slice, term.number);
          case 'rank': return lane.rank === term.number;
          case 'send':
          case 'transfer': return transfer;
          case 'collective': return kind === kCollective;
          case 'part': return kind === term.kind;
          case 'joint': return p >= 0;
          case 'recompute': return kind >= 8 && kind < 12;
          default:
            if (term.letter === 'C') return classOf(kind) === kCommunication;
            if (isPart(kind) || (transfer && !sends)) return false;
            return opIs(kind, run.microbatch[i], run.slice[i], term) ||
              (p >= 0 && opIs(partner.kind[p], partner.microbatch[p], partner.slice[p], term));
        }
      };
      if (terms.every(fits)) found.push(i);
    }
  }
  return Int32Array.from(found);
}
