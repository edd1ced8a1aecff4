'use strict';

// Formats quantities as text. Times are in nanoseconds.

function significant(value, digits) {
  const text = value.toPrecision(digits);
  return text.includes('e') ? String(Number(text)) : text.includes('.') ? text.replace(/\.?0+$/, '') : text;
}

function timeText(ns, digits = 4) {
  const size = Math.abs(ns);
  if (size === 0) return '0';
  if (size >= 1e9) return significant(ns / 1e9, digits) + ' s';
  if (size >= 1e6) return significant(ns / 1e6, digits) + ' ms';
  if (size >= 1e3) return significant(ns / 1e3, digits) + ' µs';
  return significant(ns, digits) + ' ns';
}

function bytesText(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  let value = bytes;
  while (Math.abs(value) >= 1024 && unit + 1 < units.length) {
    value /= 1024;
    ++unit;
  }
  return significant(value, 4) + ' ' + units[unit];
}

function percentText(part, whole) {
  return whole > 0 ? (100 * part / whole).toFixed(1) + ' %' : '0 %';
}

// Separates thousands: "12 345".
function countText(n) {
  return String(n).replace(/\B(?=(\d{3})+$)/g, '\u00a0');
}

// Returns the smallest 1, 2 or 5 times a power of ten that is at least `least`.
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  for (const factor of [1, 2, 5]) if (factor * power >= least) return factor * power;
  return 10 * power;
}

// Formats a tick of a time axis. All ticks have the same unit and the decimals that `step` needs.
function tickText(ns, step, end) {
  const [size, unit] = end >= 1e9 ? [1e9, 's'] : end >= 1e6 ? [1e6, 'ms'] : end >= 1e3 ? [1e3, 'µs'] : [1, 'ns'];
  const decimals = Math.max(0, Math.min(12, -Math.floor(Math.log10(step / size) + 1e-9)));
  return (ns / size).toFixed(decimals) + ' ' + unit;
}

// Creates an element with a class and children. Text is never parsed as markup.
function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}
