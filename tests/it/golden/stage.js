// Golden guest of the tests: each sample names what the stage does.
import { asset, count, log, stage, Tensor } from "./penstock_guest.js";

function helper(text) {
  throw new TypeError(`no number in '${text}'`);
}

function deep(n) {
  return n && deep(n - 1) + 1;
}

const options = {
  doc: "Does what the field `text` says.",
  wants: ["text"],
  makes: ["text", "random", "tensor"],
  counters: ["calls"],
  params: { times: { type: "integer", default: 2 } },
};

stage(options, (item, params) => {
  const word = item.fields.text;
  count("calls");
  switch (word) {
    case "print":
      console.log("to stdout", 3);
      console.error("to stderr");
      log("by log", "debug");
      break;
    case "raise":
      return helper(word);
    case "throw":
      throw "a text";
    case "loop":
      for (;;);
    case "import":
      return import("./late.js");
    case "random":
      item.fields.random = `${Math.random().toFixed(6)} ${item.random().toFixed(6)}`;
      break;
    case "clock":
      item.fields.text = String(Date.now());
      break;
    case "now":
      item.fields.text = new Date().toISOString();
      break;
    case "epoch":
      item.fields.text = new Date(0).toISOString();
      break;
    case "performance":
      item.fields.text = String(performance.now());
      break;
    case "deep":
      item.fields.text = String(deep(100_000));
      break;
    case "memory":
      item.fields.text = String(new Uint8Array(1 << 30).length);
      break;
    case "type":
      item.fields.text = new Set();
      break;
    case "big":
      item.fields.text = 1n << 70n;
      break;
    case "whole":
      item.fields.text = -(2n ** 53n) + 1n;
      break;
    case "tensor":
      item.fields.tensor = new Tensor("float32", [2, 2], [1, 2, 3, params.times]);
      break;
    case "drop":
      return null;
    case "split":
      return [];
    case "wrong":
      return 7;
    case "asset":
      asset("words");
      break;
  }
  return item;
});
