//! Generates the data for examples, tests and benches.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};
use make_data::{
    MOST_CLIPS, MOST_PHOTOS, PhotoSettings, write_clips, write_photos, write_records, write_tokenizer,
};

/// Generates photo-like JPEGs, sounds, text records and a tokenizer: the same bytes on every machine.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Photo-like JPEGs, about 60 kB each, as DIR/000/000000.jpg and so on; existing photos of the set are kept.
    #[command(after_help = "Example: make-data photos demo/photos --count 200")]
    Photos {
        /// Folder to fill; created if it is missing.
        dir: PathBuf,
        /// Number of photos to write.
        #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(..=MOST_PHOTOS))]
        count: u64,
        /// Seed of the set; another seed generates other photos.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Width of each photo, in pixels.
        #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u16).range(1..))]
        width: u16,
        /// Height of each photo, in pixels.
        #[arg(long, default_value_t = 375, value_parser = clap::value_parser!(u16).range(1..))]
        height: u16,
        /// JPEG quality, 1 to 100.
        #[arg(long, default_value_t = 85, value_parser = clap::value_parser!(u8).range(1..=100))]
        quality: u8,
    },
    /// Sounds with some features of speech, as DIR/000/000000.wav and so on: 16 kHz, 16 bits, one channel.
    #[command(after_help = "Example: make-data audio demo/audio --count 100")]
    Audio {
        /// Folder to fill; created if it is missing.
        dir: PathBuf,
        /// Number of sounds to write.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(..=MOST_CLIPS))]
        count: u64,
        /// Seed of the set; another seed generates other sounds.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Maximum length of a sound, in milliseconds; the minimum is half of it.
        #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(2..=3_600_000))]
        most_ms: u32,
    },
    /// Text records with `key` and `text`, as NDJSON.
    #[command(after_help = "Example: make-data text demo/text.ndjson --count 1000")]
    Text {
        /// File to write; its folder is created if it is missing.
        file: PathBuf,
        /// Number of records to write.
        #[arg(long, default_value_t = 1000)]
        count: u64,
        /// Seed of the set; another seed generates other texts.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// The `tokenizer.json` for the texts of `make-data text`, which `std/text` reads: one token per word.
    #[command(after_help = "Example: make-data tokenizer demo/tokenizer.json")]
    Tokenizer {
        /// File to write; its folder is created if it is missing.
        file: PathBuf,
    },
}

fn main() -> Result<()> {
    let mut out = io::stdout().lock();
    match Arguments::parse().what {
        What::Photos { dir, count, seed, width, height, quality } => {
            let made = write_photos(&dir, seed, count, &PhotoSettings { width, height, quality })?;
            writeln!(out, "{}: {} photos created, {} kept", dir.display(), made.written, made.kept)?;
        }
        What::Audio { dir, count, seed, most_ms } => {
            write_clips(&dir, seed, count, most_ms)?;
            writeln!(out, "{}: {count} sounds created", dir.display())?;
        }
        What::Tokenizer { file } => {
            let tokens = write_tokenizer(&file)?;
            writeln!(out, "{}: {tokens} tokens created", file.display())?;
        }
        What::Text { file, count, seed } => {
            write_records(&file, seed, count)?;
            writeln!(out, "{}: {count} records created", file.display())?;
        }
    }
    Ok(())
}
