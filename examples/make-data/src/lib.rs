//! Synthetic data for examples, tests and benches: the same bytes on every machine, for any number of threads.
//!
//! All arithmetic uses integers, so that results do not depend on a math library.

mod audio;
mod fault;
mod noise;
mod photo;
mod photos;
mod random;
mod text;
mod tokenizer;

pub use audio::{MOST_CLIPS, SAMPLE_RATE, clip, clip_path, write_clips};
pub use fault::WriteFault;
pub use photo::{PhotoFault, PhotoSettings, photo};
pub use photos::{MOST_PHOTOS, Made, photo_path, write_photos};
pub use text::{record, write_records};
pub use tokenizer::{tokenizer, write_tokenizer};
