//! The photo pipeline as users run it, compared with a native loop over the same files, and its memory.

use std::cell::RefCell;
use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use dataloader_rs::error::Result;
use dataloader_rs::{Collator, DataLoader, Dataset};
use fast_image_resize as fir;
use penstock_pipeline::{Modules, Outlets, RunEnds, Runner, Stores};
use penstock_types::run::RunState;
use penstock_types::spec::Spec;
use penstock_wasm::{Sandbox, SandboxSettings};
use rustix::time::{ClockId, clock_gettime};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;

use crate::sandbox::walk;
use crate::{Bound, Row, median, photos_dir, take_turns, target_dir, workspace};

const THREADS: usize = 2;
const SIZE: u32 = 224;

pub(crate) fn rate_against_native_loop() -> Row {
    let what = "photo pipeline with WASM: images/s relative to a native loop";
    rate_against(what, native_loop, 0.9, 1.0)
}

pub(crate) fn rate_against_dataloader_rs() -> Row {
    let what = "photo pipeline with WASM: images/s relative to dataloader-rs";
    rate_against(what, dataloader_rs, 1.05, 1.2)
}

fn rate_against(what: &'static str, other: fn(&[PathBuf]), must: f64, aim: f64) -> Row {
    let (images, (pipeline_s, other_s, ratio)) = against(other, wall_time);
    let [pipeline, other] = [pipeline_s, other_s].map(|seconds| images as f64 / seconds);
    Row {
        what,
        must: Bound::AtLeast(must, "x"),
        aim: Bound::AtLeast(aim, "x"),
        found: 1.0 / ratio,
        from: format!("{pipeline:.0} images/s against {other:.0} images/s, {THREADS} threads, `draft` off"),
    }
}

pub(crate) fn cpu_against_native_loop() -> Row {
    let (images, (pipeline_s, native_s, ratio)) = against(native_loop, cpu_time);
    let of_1000 = |seconds: f64| seconds * 1000.0 / images as f64;
    Row {
        what: "photo pipeline with WASM: CPU time relative to a native loop",
        must: Bound::AtMost(1.15, "x"),
        aim: Bound::AtMost(1.0, "x"),
        found: ratio,
        from: format!(
            "{:.2} s against {:.2} s for 1,000 images, {THREADS} threads, `draft` off",
            of_1000(pipeline_s),
            of_1000(native_s)
        ),
    }
}

/// Number of photos, and the medians of the pipeline, the other loader and their ratio, in the time that `clock` measures.
fn against(other: fn(&[PathBuf]), clock: fn() -> Duration) -> (usize, (f64, f64, f64)) {
    let files = walk(&photos_dir());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let document = fs::read(workspace().join("examples/pipelines/photos-max.json")).unwrap();
    let mut spec: serde_json::Value = serde_json::from_slice(&document).unwrap();
    spec["threads"] = THREADS.into();
    let spec = Spec::from_value(spec).unwrap();
    let mut stores = Stores::default();
    stores.add_folder("photos", photos_dir()).unwrap();
    let mut modules = Modules::new(Sandbox::new(SandboxSettings::default()).unwrap());
    modules.add_std(&spec).unwrap();
    let runner = Runner::new(runtime.handle().clone(), stores, modules);
    let prepared = runner.prepare(&spec, Outlets::ALL).unwrap();
    let pipeline = || {
        let start = clock();
        let ended = runtime.block_on(prepared.start(None, RunEnds::default())).unwrap().wait();
        let elapsed = clock() - start;
        assert_eq!(ended.snapshot.state, RunState::Completed);
        assert_eq!(ended.snapshot.ledger.total.delivered, files.len() as u64);
        elapsed
    };
    let other = || {
        let start = clock();
        other(&files);
        clock() - start
    };
    let turns = take_turns(pipeline, other);
    (files.len(), turns)
}

fn wall_time() -> Duration {
    clock_gettime(ClockId::Monotonic).try_into().unwrap()
}

/// CPU time of all threads of this process.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap()
}

pub(crate) fn peak_memory() -> Row {
    let peaks: Vec<f64> = (0..5).map(|_| peak_mb()).collect();
    Row {
        what: "peak memory of the photo pipeline (batch 32, f32 CHW)",
        must: Bound::AtMost(90.0, " MB"),
        aim: Bound::AtMost(70.0, " MB"),
        found: median(peaks.clone()),
        from: format!("VmHWM {peaks:.0?} MB"),
    }
}

/// Threads that read, decode, resize and normalise files into batches of 32, like a hand-written loader without queues,
/// statistics or a sandbox.
fn native_loop(files: &[PathBuf]) {
    let (give, take) = crossbeam_channel::bounded::<Vec<f32>>(64);
    let (give_path, take_path) = crossbeam_channel::bounded::<PathBuf>(64);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let (give, take_path) = (give.clone(), take_path.clone());
            scope.spawn(move || {
                let mut resizer = fir::Resizer::new();
                take_path.into_iter().for_each(|path| give.send(native(&path, &mut resizer)).unwrap());
            });
        }
        drop(give);
        scope.spawn(move || {
            let mut batch = Vec::new();
            for image in take {
                batch.extend(image);
                if batch.len() == 32 * (3 * SIZE * SIZE) as usize {
                    std::hint::black_box(std::mem::take(&mut batch));
                }
            }
        });
        files.iter().for_each(|path| give_path.send(path.clone()).unwrap());
        drop(give_path);
    });
}

/// The same work in dataloader-rs: a batch per worker at a time, stacked by its collator.
fn dataloader_rs(files: &[PathBuf]) {
    struct Photos(Vec<PathBuf>);
    struct Stack;

    impl Dataset for Photos {
        type Item = Vec<f32>;

        fn get(&self, index: usize) -> Result<Vec<f32>> {
            thread_local!(static RESIZER: RefCell<fir::Resizer> = RefCell::new(fir::Resizer::new()));
            Ok(RESIZER.with_borrow_mut(|resizer| native(&self.0[index], resizer)))
        }

        fn len(&self) -> usize {
            self.0.len()
        }
    }

    impl Collator<Vec<f32>> for Stack {
        type Batch = Vec<f32>;

        fn collate(&self, images: Vec<Vec<f32>>) -> Result<Vec<f32>> {
            Ok(images.concat())
        }
    }

    let photos = Photos(files.to_vec());
    let mut loader = DataLoader::builder(photos).collator(Stack).batch_size(32).num_workers(THREADS).build();
    let elements: usize = loader.iter().map(|batch| std::hint::black_box(batch.unwrap()).len()).sum();
    assert_eq!(elements, files.len() * (3 * SIZE * SIZE) as usize);
}

fn native(path: &Path, resizer: &mut fir::Resizer) -> Vec<f32> {
    const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
    const STD: [f32; 3] = [0.229, 0.224, 0.225];
    let mut decoder = JpegDecoder::new(ZCursor::new(fs::read(path).unwrap()));
    let pixels = decoder.decode().unwrap();
    let (width, height) = decoder.dimensions().unwrap();
    let size = |side: usize| NonZeroU32::new(side as u32).unwrap().get();
    let image =
        fir::images::Image::from_vec_u8(size(width), size(height), pixels, fir::PixelType::U8x3).unwrap();
    let mut small = fir::images::Image::new(SIZE, SIZE, fir::PixelType::U8x3);
    let side = width.min(height) as f64;
    let options = fir::ResizeOptions::new()
        .crop((width as f64 - side) / 2.0, (height as f64 - side) / 2.0, side, side)
        .resize_alg(fir::ResizeAlg::Convolution(fir::FilterType::Bilinear));
    resizer.resize(&image, &mut small, &options).unwrap();
    let plane = (SIZE * SIZE) as usize;
    let mut planes = vec![0.0; 3 * plane];
    let (red, rest) = planes.split_at_mut(plane);
    let (green, blue) = rest.split_at_mut(plane);
    let scale: [f32; 3] = std::array::from_fn(|channel| 1.0 / (255.0 * STD[channel]));
    let shift: [f32; 3] = std::array::from_fn(|channel| MEAN[channel] / STD[channel]);
    for (((pixel, red), green), blue) in small.buffer().chunks_exact(3).zip(red).zip(green).zip(blue) {
        *red = f32::from(pixel[0]) * scale[0] - shift[0];
        *green = f32::from(pixel[1]) * scale[1] - shift[1];
        *blue = f32::from(pixel[2]) * scale[2] - shift[2];
    }
    planes
}

/// Peak memory of a `penstock run` of the pipeline, in MB.
fn peak_mb() -> f64 {
    let mut child = Command::new(target_dir().join("release/penstock"))
        .arg("run")
        .arg(workspace().join("examples/pipelines/photos-max.json"))
        .args(["--quiet", "--threads", "2", "--store"])
        .arg(format!("photos={}", photos_dir().display()))
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    // The high-water mark only grows, so the last reading is the peak, except for the last moment of the run.
    let mut peak = 0.0_f64;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if let Ok(status) = fs::read_to_string(format!("/proc/{}/status", child.id())) {
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
            peak = peak.max(kib.unwrap_or(0.0) * 1024.0 / 1e6);
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(status.success() && peak > 0.0, "{status}, {peak} MB");
    peak
}
