import assert from "node:assert";
import { test } from "node:test";

import { counters, instance, Item } from "./penstock_guest.js";
import "./stage.js";

const run = (text, params) => instance(params).process(new Item("a.txt", { bytes: new TextEncoder().encode(text) }));

test("a long text is cut and counted", () => {
  assert.deepEqual(run("one  two\nthree", { words: 2 }).fields, { text: "one two", words: 2n });
  assert.equal(counters.get("cut"), 1);
});

test("a file that is not text is refused", () => {
  assert.throws(() => instance().process(new Item("a.jpg", { bytes: Uint8Array.of(0xff, 0xd8) })), URIError);
});

test("a file without words is dropped", () => assert.equal(run(" \n"), null));
