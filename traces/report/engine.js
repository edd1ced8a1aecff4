
// Runs the engine of a live page: a WebAssembly module with the functions of tools/live/engine.cc.

// Compiles and starts the module. Returns a function that runs a request (an object, tools/simulate/live_run.h) and returns
// {status, header, columns}: `header` is the result, or the message if `status` is not 0; `columns` is an ArrayBuffer.
async function startEngine(bytes) {
  let memory = null;
  const kNoFile = 44;
  // What the C library imports. There are no files, no environment, and no output.
  const wasi = {
    clock_time_get: (clock, precision, out) => {
      new DataView(memory.buffer).setBigInt64(out, BigInt(Math.round(performance.now() * 1e6)), true);
      return 0;
    },
    environ_sizes_get: (count, size) => {
      const view = new DataView(memory.buffer);
      view.setUint32(count, 0, true);
      view.setUint32(size, 0, true);
      return 0;
    },
    environ_get: () => 0,
    proc_exit: (code) => { throw new Error(`the engine ended with code ${code}`); },
    fd_close: () => kNoFile,
    fd_read: () => kNoFile,
    fd_seek: () => kNoFile,
    fd_write: () => kNoFile,
  };
  const env = {emscripten_notify_memory_growth: () => {}, __syscall_stat64: () => -kNoFile};
  const {instance} = await WebAssembly.instantiate(bytes, {env, wasi_snapshot_preview1: wasi});
  const engine = instance.exports;
  memory = engine.memory;
  engine._initialize();
  const encoder = new TextEncoder();
  const decoder = new TextDecoder();
  return (request) => {
    const text = encoder.encode(JSON.stringify(request));
    new Uint8Array(memory.buffer, engine.sluice_request(text.length), text.length).set(text);
    const status = engine.sluice_run();
    const header = decoder.decode(new Uint8Array(memory.buffer, engine.sluice_header(), engine.sluice_header_bytes()));
    if (status !== 0) return {status, header, columns: null};
    const begin = engine.sluice_columns();
    return {status, header: JSON.parse(header), columns: memory.buffer.slice(begin, begin + engine.sluice_columns_bytes())};
  };
}
