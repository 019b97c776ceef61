//! Tool of `reference.py`. `apply PARAMS SEED FILE...` writes, for each file, a line of JSON with the steps, and the shape and type
//! of the result or the error, then the elements of the result. `apply PARAMS COUNT WIDTHxHEIGHT` writes the steps of the
//! seeds below COUNT, a line of JSON each.

use std::io::{self, Write};

use image::{Settings, Size, draw, transform};
use penstock_guest::prelude::*;
use serde_json::json;

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let params = arguments.next().unwrap_or_default();
    let seed: u64 = arguments.next().and_then(|seed| seed.parse().ok()).unwrap_or_default();
    let settings = Settings::from_json(&params).map_err(io::Error::other)?;
    let plain = Settings { ops: Vec::new(), ..settings.clone() };
    let steps = |size, seed| draw(&settings.ops, size, &mut Rng::from_seed(seed));
    let mut out = io::BufWriter::new(io::stdout().lock());
    for file in arguments {
        let size = file.split_once('x').and_then(|(width, height)| {
            Some(Size { width: width.parse().ok()?, height: height.parse().ok()? })
        });
        if let Some(size) = size {
            for seed in 0..seed {
                // Seeds of samples are far apart.
                let steps = steps(size, Rng::from_seed(seed).u64())
                    .map_err(|error| io::Error::other(error.to_string()))?;
                writeln!(out, "{}", json!(steps))?;
            }
            continue;
        }
        let item = Item::new(file.as_str()).with_seed(seed).with("bytes", std::fs::read(&file)?);
        let found = transform(item.clone(), &plain).and_then(|decoded| {
            let decoded = decoded.tensor::<u8>("image")?.dimensions::<3>()?;
            let (height, width) = match settings.layout {
                image::Layout::Chw => (decoded[1], decoded[2]),
                image::Layout::Hwc => (decoded[0], decoded[1]),
            };
            let steps = steps(Size { width: width as u32, height: height as u32 }, seed)?;
            Ok((steps, transform(item, &settings)?))
        });
        match found {
            Err(error) => writeln!(out, "{}", json!({ "error": error.message() }))?,
            Ok((steps, item)) => {
                let Some(Value::Tensor(tensor)) = item.get("image") else { continue };
                let dtype = tensor.dtype.name();
                writeln!(out, "{}", json!({ "steps": steps, "shape": tensor.shape, "dtype": dtype }))?;
                out.write_all(&tensor.data)?;
            }
        }
    }
    Ok(())
}
