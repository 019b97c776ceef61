// SDK of Penstock stages in JavaScript: `stage` declares a function of `stage.js` as the stage of a module.
//
// Node.js imports it in tests and to write the manifest. componentize-qjs builds `entry.js`, which connects it to the runner.

const MASK = (1n << 64n) - 1n;
const ARRAYS = {
  boolean: Uint8Array, uint8: Uint8Array, int8: Int8Array, int16: Int16Array, uint16: Uint16Array, int32: Int32Array,
  int64: BigInt64Array, float32: Float32Array, float64: Float64Array,
};

export const assets = new Map(); // assets of native tests: name -> Uint8Array
export const counters = new Map(); // counters of native tests: name -> sum
let declared = null;
let host = null;

/// Result of a stateful stage that holds the sample back until a later call or `finish`.
export const HELD = Symbol("held");

/// An array; `data` is a typed array whose elements are rows first.
export class Tensor {
  constructor(dtype, shape, data) {
    const Elements = ARRAYS[dtype] ?? Uint8Array; // float16 and bfloat16: bytes
    Object.assign(this, { dtype, shape: [...shape], data: data instanceof Elements ? data : Elements.from(data) });
  }
}

/// One sample: `fields` maps names to a Uint8Array, string, bigint (whole number), number (real number) or `Tensor`.
export class Item {
  constructor(key, fields = {}, seed = 0n) {
    Object.assign(this, { key, fields, seed: BigInt(seed) });
  }

  /// Random numbers from 0 up to 1 that depend on the seed of this sample alone, as `Math.random` in a stage.
  get random() {
    return (this.generator ??= generator(this.seed));
  }

  /// An item without fields for the `index`-th part of this item, with a distinct key and seed.
  child(index) {
    const state = this.seed ^ (BigInt(index + 1) * 0x9e3779b97f4a7c15n & MASK);
    return new Item(`${this.key}#${index}`, {}, next(state)[1]);
  }
}

/// One step of SplitMix64: the new state, and 64 random bits.
function next(before) {
  const state = before + 0x9e3779b97f4a7c15n & MASK;
  let mixed = (state ^ state >> 30n) * 0xbf58476d1ce4e5b9n & MASK;
  mixed = (mixed ^ mixed >> 27n) * 0x94d049bb133111ebn & MASK;
  return [state, mixed ^ mixed >> 31n];
}

function generator(seed) {
  let [state, bits] = [seed, 0n];
  return () => {
    [state, bits] = next(state);
    return Number(bits >> 11n) / 2 ** 53;
  };
}

/// Declares the stage: a function `(item, params)`, which returns the item, null to drop it, or an array of items (`fanOut`). In mode
/// `batch` it takes an array of items and returns an array of results. In mode `stateful`, and where params and assets are read once,
/// it is a class with `constructor(params)`, `process(item)` and `finish()`. `params` maps each name to a JSON Schema.
export function stage(options, made) {
  if (declared) throw new TypeError("a module has one stage, but `stage` is called twice");
  const { doc = "", mode = "sample", wants = null, makes = [], removes = [], fanOut = false, counters = [], params = null } = options;
  const required = Object.keys(params ?? {}).filter((name) => !("default" in params[name]));
  const schema = params && { type: "object", properties: params, required, additionalProperties: false };
  const manifest = { doc, mode, wants, makes, removes, fan_out: fanOut, counters, params: schema };
  declared = { made, rules: params ?? {}, manifest };
}

/// The declared stage, set up with these params as the runner does: an object with `process`.
export function instance(params = {}) {
  if (!declared) throw new TypeError("stage.js does not call `stage`");
  const { made, rules } = declared;
  const defaults = Object.entries(rules).filter(([, rule]) => "default" in rule).map(([name, rule]) => [name, rule.default]);
  const settings = { ...Object.fromEntries(defaults), ...params };
  const isClass = /^class\b/.test(Function.prototype.toString.call(made));
  return isClass ? new made(settings) : { process: (given) => made(given, settings) };
}

/// Text of UTF-8 bytes; throws a URIError for other bytes. A stage has no TextDecoder.
export function text(bytes) {
  const parts = [];
  for (let start = 0; start < bytes.length; start += 4096) {
    parts.push(String.fromCharCode(...bytes.subarray(start, start + 4096)));
  }
  return decodeURIComponent(escape(parts.join("")));
}

/// Writes a line to the run's log: `debug`, `info`, `warn` or `error`.
export function log(message, level = "info") {
  if (host) host.log(level, String(message));
  else console.log(`${level}: ${message}`);
}

/// Adds to a counter that `stage` declares.
export function count(name, delta = 1) {
  if (host) host.count(name, delta);
  else counters.set(name, (counters.get(name) ?? 0) + delta);
}

/// Bytes of an asset that the pipeline names for this stage. Each call copies them.
export function asset(name) {
  if (host) return host.asset(name);
  if (!assets.has(name)) throw new Error(`no asset \`${name}\``);
  return assets.get(name);
}

/// The manifest of the module, for `penstock module manifest`.
export function manifest(name, version = "0.1.0") {
  if (!declared) throw new TypeError("stage.js does not call `stage`");
  return { name, version, ...declared.manifest };
}

/// An exception with its stack in one text, innermost frame first.
function reason(error) {
  if (!(error instanceof Error)) return `the stage threw ${String(error)}`;
  const frames = (error.stack ?? "").split("\n").map((line) => line.trim()).filter((line) => line && !line.includes("penstock_guest.js"));
  return [`${error.name}: ${error.message}`, ...frames.slice(0, 6)].join("\n  ");
}

/// Replaces what would reach the stubs of WASI, which end the guest without a reason.
function close() {
  const clock = (name) => () => {
    throw new Error(`a stage has no clock (\`${name}\`)`);
  };
  const Original = Date;
  globalThis.Date = new Proxy(Original, {
    construct: (target, given) => (given.length ? new target(...given) : clock("new Date()")()),
    apply: clock("Date()"),
    get: (target, name) => (name === "now" ? clock("Date.now") : Reflect.get(target, name)),
  });
  globalThis.performance = { now: clock("performance.now") };
  const line = (level) => (...given) => log(given.map(String).join(" "), level);
  globalThis.console = { debug: line("debug"), log: line("info"), info: line("info"), warn: line("warn"), error: line("warn") };
}

/// A whole number as the runner passes it. componentize-qjs passes 64 bits as a double, so larger numbers arrive rounded.
function exact(number) {
  if (Number.isSafeInteger(Number(number))) return typeof number === "bigint" ? Number(number) : BigInt(number);
  throw new RangeError(`the whole number ${number} is beyond 2^53, the limit of stages in JavaScript`);
}

function inwards({ key, seed, fields }) {
  const value = ({ tag, val }) => {
    if (tag === "int") return exact(val);
    if (tag === "blob" && !(val instanceof Uint8Array)) return Uint8Array.from(val);
    if (tag !== "tensor") return val;
    const Elements = ARRAYS[val.dtype] ?? Uint8Array;
    return new Tensor(val.dtype, val.shape, new Elements(Uint8Array.from(val.data).buffer));
  };
  return new Item(key, Object.fromEntries(fields.map(({ name, value: given }) => [name, value(given)])), seed);
}

function outwards(item) {
  if (!(item instanceof Item)) throw new TypeError(`the stage returned ${String(item)}; return the item, null, or an array of items`);
  const value = (name, given) => {
    if (given instanceof Uint8Array) return { tag: "blob", val: given };
    if (typeof given === "string") return { tag: "text", val: given };
    if (typeof given === "number") return { tag: "real", val: given };
    if (typeof given === "bigint") return { tag: "int", val: exact(given) };
    if (given instanceof Tensor) {
      const { dtype, shape, data } = given;
      return { tag: "tensor", val: { dtype, shape, data: new Uint8Array(data.buffer, data.byteOffset, data.byteLength) } };
    }
    throw new TypeError(`field \`${name}\` is of type ${typeof given}; a field is a Uint8Array, string, bigint, number or Tensor`);
  };
  const fields = Object.entries(item.fields).map(([name, given]) => ({ name, value: value(name, given) }));
  return { key: item.key, seed: Number(item.seed), fields };
}

function outcome(result) {
  if (result === null || result === undefined) return { tag: "drop" };
  if (result === HELD) return { tag: "held" };
  if (Array.isArray(result)) return { tag: "many", val: result.map(outwards) };
  return { tag: "keep", val: outwards(result) };
}

/// The interface that the runner calls, over the host functions of a guest.
export function transform(functions) {
  let running = null;
  const attempt = (work) => {
    try {
      return work();
    } catch (error) {
      return { tag: "failed", val: reason(error) };
    }
  };
  const seeded = (item) => {
    Math.random = generator(item.seed);
    return item;
  };
  return {
    init(params) {
      try {
        host = functions;
        close();
        running = instance(JSON.parse(params));
      } catch (error) {
        throw reason(error);
      }
    },
    process(items) {
      if (declared.manifest.mode !== "batch") {
        return items.map((item) => attempt(() => outcome(running.process(seeded(inwards(item))))));
      }
      const all = attempt(() => {
        const given = items.map(inwards);
        given.slice(0, 1).forEach(seeded);
        const results = running.process(given);
        if (results?.length !== given.length) throw new TypeError(`the stage must return an array of ${given.length} results`);
        return results.map(outcome);
      });
      return Array.isArray(all) ? all : items.map(() => all);
    },
    finish() {
      try {
        return running.finish().map(outwards);
      } catch (error) {
        log(`panic: ${reason(error)}`, "error");
        throw error;
      }
    },
  };
}
