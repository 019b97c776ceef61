// A stage for Penstock: see README.md.

import { count, stage, text } from "./penstock_guest.js";

const options = {
  doc: "Keeps the first words of a text file. Drops a file without words; refuses a file that is not text.",
  wants: ["bytes"],
  makes: ["text", "words"],
  removes: ["bytes"],
  counters: ["cut"],
  params: { words: { type: "integer", minimum: 1, default: 20, description: "Maximum number of words to keep of each text." } },
};

stage(options, (item, { words: most }) => {
  const words = text(item.fields.bytes).split(/\s+/).filter(Boolean);
  if (!words.length) return null;
  const kept = words.slice(0, most);
  if (kept.length < words.length) count("cut");
  item.fields = { text: kept.join(" "), words: BigInt(kept.length) };
  return item;
});
