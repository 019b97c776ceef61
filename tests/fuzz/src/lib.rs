//! Fuzz targets: each reads untrusted bytes and panics if a required property does not hold for them. `make fuzz` drives the
//! targets with libFuzzer (`libfuzzer/`); every test run feeds them the files in `corpus/`.

mod answer;
mod decoder;
mod document;
mod formats;
mod guest;
mod input;
mod manifest;
mod reader;
mod returned;
mod schemas;
mod told;
mod upload;
mod values;

pub use answer::{Answer, BASE, Field, Item, Key, Outcome, Patch, Text, Value};
pub use decoder::{DECODERS, Decoder};
pub use document::{document, document_words};
pub use formats::{example, index};
pub use guest::{Encoding, core, load, typed, with_manifest};
pub use manifest::manifest;
pub use reader::{READERS, reader, reader_seeds};
pub use returned::{outcome_of, returned};
pub use schemas::{schema_words, schemas};
pub use upload::upload;
pub use values::values;
