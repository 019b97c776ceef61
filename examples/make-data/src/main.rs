//! Makes the data that examples, tests and benches run on.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};
use make_data::{MOST_PHOTOS, PhotoSettings, write_photos, write_records};

/// Makes photo-like JPEGs and text records: the same bytes on every machine.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Photo-like JPEGs, about 60 kB each, as DIR/000/000000.jpg and so on; those already there are kept.
    #[command(after_help = "Example: make-data photos demo/photos --count 200")]
    Photos {
        /// The folder to fill; made when it is not there.
        dir: PathBuf,
        /// How many.
        #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(..=MOST_PHOTOS))]
        count: u64,
        /// Names the set; another seed makes other photos.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// In pixels.
        #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u16).range(1..))]
        width: u16,
        /// In pixels.
        #[arg(long, default_value_t = 375, value_parser = clap::value_parser!(u16).range(1..))]
        height: u16,
        /// JPEG quality, 1 to 100.
        #[arg(long, default_value_t = 85, value_parser = clap::value_parser!(u8).range(1..=100))]
        quality: u8,
    },
    /// Text records with `key` and `text`, as NDJSON.
    #[command(after_help = "Example: make-data text demo/text.ndjson --count 1000")]
    Text {
        /// The file to write; its folder is made when it is not there.
        file: PathBuf,
        /// How many.
        #[arg(long, default_value_t = 1000)]
        count: u64,
        /// Names the set; another seed makes other texts.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
}

fn main() -> Result<()> {
    let mut out = io::stdout().lock();
    match Arguments::parse().what {
        What::Photos { dir, count, seed, width, height, quality } => {
            let made = write_photos(&dir, seed, count, &PhotoSettings { width, height, quality })?;
            writeln!(out, "{}: {} photos made, {} kept", dir.display(), made.written, made.kept)?;
        }
        What::Text { file, count, seed } => {
            write_records(&file, seed, count)?;
            writeln!(out, "{}: {count} records made", file.display())?;
        }
    }
    Ok(())
}
