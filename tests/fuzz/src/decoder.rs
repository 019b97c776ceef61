//! Target for the files that the modules of the program decode: in the sandbox, each is decoded or refused with a reason.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;
use std::{env, fs};

use bytes::Bytes;
use penstock_engine::item::{Item, Origin, Sample, Value};
use penstock_engine::ports::{StopFlag, ThreadOp, ThreadOpFactory};
use penstock_pipeline::StdModule;
use penstock_types::run::FailureClass;
use penstock_wasm::{Module, Sandbox, SandboxSettings, StageSettings};

use crate::told::assert_printable;

/// Instances by the name of their module and their params.
type Stages = BTreeMap<(&'static str, &'static str), Box<dyn ThreadOp>>;

/// Format of files that a module of the program decodes.
#[derive(Debug)]
pub struct Decoder {
    /// Extension of files, and name of the target.
    pub name: &'static str,
    /// Name of the module, without `std/`.
    pub module: &'static str,
    /// Params of the module as JSON. The length of a file determines which of them apply.
    pub params: &'static [&'static str],
    /// Positions and bytes by which the module recognizes the format.
    marks: &'static [(usize, &'static [u8])],
}

const IMAGE: &[&str] = &[
    r#"{"ops": []}"#,
    r#"{"ops": [{"RandomResizedCrop": {"size": 24}}, {"RandomHorizontalFlip": {}}, {"ToDtype": {"dtype": "float32"}}]}"#,
    r#"{"ops": [{"Resize": {"size": 20}}, {"RandomRotation": {"degrees": 30}}], "draft": true, "layout": "hwc"}"#,
    r#"{"ops": [{"CenterCrop": {"size": 40}}, {"Resize": {"size": 20, "interpolation": "bicubic"}}], "apply_exif_orientation": false}"#,
    r#"{"ops": [{"CenterCrop": {"size": 30}}], "max_pixels": 1000}"#,
];
const AUDIO: &[&str] = &[
    r#"{"output": "waveform"}"#,
    r#"{"seconds": 0.5, "crop": "random"}"#,
    r#"{"sample_rate": 11025, "output": "waveform", "seconds": 2}"#,
];
const TABLE: &[&str] = &[
    r#"{"ops": [{"Npy": {}}]}"#,
    r#"{"ops": [{"Npy": {"to": "x"}}, {"Cast": {"field": "x", "dtype": "float32"}}]}"#,
];

/// All formats, by name.
pub const DECODERS: [Decoder; 10] = [
    Decoder { name: "bmp", module: "image", params: IMAGE, marks: &[(0, b"BM")] },
    Decoder { name: "flac", module: "audio", params: AUDIO, marks: &[(0, b"fLaC")] },
    Decoder { name: "gif", module: "image", params: IMAGE, marks: &[(0, b"GIF8")] },
    Decoder { name: "jpg", module: "image", params: IMAGE, marks: &[(0, b"\xff\xd8")] },
    Decoder { name: "mp3", module: "audio", params: AUDIO, marks: &[(0, b"\xff\xfb")] },
    Decoder { name: "npy", module: "table", params: TABLE, marks: &[(0, b"\x93NUMPY")] },
    Decoder { name: "ogg", module: "audio", params: AUDIO, marks: &[(0, b"OggS")] },
    Decoder { name: "png", module: "image", params: IMAGE, marks: &[(0, b"\x89PNG")] },
    Decoder { name: "wav", module: "audio", params: AUDIO, marks: &[(0, b"RIFF")] },
    Decoder { name: "webp", module: "image", params: IMAGE, marks: &[(0, b"RIFF"), (8, b"WEBP")] },
];

impl Decoder {
    /// Finds the decoder of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        DECODERS.iter().find(|decoder| decoder.name == name)
    }

    /// Files of this format among the fixtures of the stages.
    pub fn seeds(&self) -> Vec<PathBuf> {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/stages").join(self.module);
        let folders = ["tests/data", "tests/data/files"].map(|folder| fs::read_dir(data.join(folder)));
        let entries = folders.into_iter().flatten().flatten().flatten().map(|entry| entry.path());
        let mut files: Vec<PathBuf> =
            entries.filter(|path| path.extension().is_some_and(|extension| extension == self.name)).collect();
        files.sort();
        files
    }

    /// The input as a file of this format: with its marks, and with the checksums that `--cfg fuzzing` does not switch off.
    pub fn file(&self, input: &[u8]) -> Vec<u8> {
        let mut file = input.to_vec();
        // The module also recognizes MP3 by a tag, and by other headers of frames.
        let is_marked = self.name == "mp3" && (file.starts_with(b"ID3") || file.starts_with(b"\xff"));
        for (at, mark) in self.marks.iter().filter(|_| !is_marked) {
            file.resize(file.len().max(at + mark.len()), 0);
            file[*at..at + mark.len()].copy_from_slice(mark);
        }
        if self.name == "ogg" {
            sum_pages(&mut file);
        }
        file
    }

    /// Params that apply to this file.
    pub fn params_of(&self, file: &[u8]) -> &'static str {
        self.params[file.len() % self.params.len()]
    }

    /// Decodes the input in the sandbox.
    pub fn decode(&self, input: &[u8]) {
        thread_local! {
            static STAGES: RefCell<Stages> = RefCell::default();
        }
        let file = self.file(input);
        let params = self.params_of(&file);
        STAGES.with_borrow_mut(|stages| {
            let stage = stages.entry((self.module, params)).or_insert_with(|| start(self.module, params));
            let mut sample = Sample::new("a", Origin::default());
            sample.set("bytes", Value::Blob(Bytes::from(file)));
            let output = stage.apply(Item::Sample(sample), &StopFlag::default());
            match output.failed.as_slice() {
                [] => assert_eq!(output.items.samples(), 1, "the file is neither decoded nor refused"),
                [failed] => {
                    let (class, message) = (failed.fault.class, &failed.fault.message);
                    assert_eq!(class, FailureClass::Data, "with {params}: {message}");
                    assert_printable(message);
                }
                more => panic!("{} failures of one file", more.len()),
            }
        });
    }
}

/// Starts an instance of the module.
fn start(module: &str, params: &str) -> Box<dyn ThreadOp> {
    let settings = StageSettings {
        name: module.into(),
        params: serde_json::from_str(params).expect("the params are JSON"),
        deadline: Duration::from_secs(5),
        memory_bytes: 256 << 20,
        output_bytes: 128 << 20,
        held_bytes: 16 << 20,
        assets: [].into(),
        document_seed: 7,
    };
    load(module).stage(settings).build(&StopFlag::default()).expect("the module starts")
}

/// Loads a module of the program. A file of the same name in the folder `MODULES` replaces it: one built with
/// `--cfg fuzzing`, whose decoders accept wrong checksums.
fn load(module: &str) -> &'static Module {
    static LOADED: [OnceLock<Module>; 3] = [const { OnceLock::new() }; 3];
    static SANDBOX: OnceLock<Sandbox> = OnceLock::new();
    let at = ["audio", "image", "table"].iter().position(|name| *name == module);
    LOADED[at.expect("the module decodes files")].get_or_init(|| {
        let settings = SandboxSettings { instances: 16, ..SandboxSettings::default() };
        let sandbox = SANDBOX.get_or_init(|| Sandbox::new(settings).expect("the sandbox starts"));
        let bytes = match env::var_os("MODULES") {
            Some(folder) => {
                let path = PathBuf::from(folder).join(module).with_extension("wasm");
                fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
            }
            None => StdModule::find(&format!("std/{module}")).expect("`make std` has run").bytes().to_vec(),
        };
        sandbox.load(&bytes).expect("the module is within every limit")
    })
}

/// Writes the checksum of each page of an Ogg file: CRC-32 with the polynomial 0x04c11db7, of the page with zeros in its place.
fn sum_pages(file: &mut [u8]) {
    const HEADER: usize = 27;
    let mut at = 0;
    while let Some(page) = file.get_mut(at..)
        && page.starts_with(b"OggS")
        && page.len() >= HEADER
    {
        let segments = usize::from(page[HEADER - 1]);
        let Some(lengths) = page.get(HEADER..HEADER + segments) else { return };
        let length = HEADER + segments + lengths.iter().map(|length| usize::from(*length)).sum::<usize>();
        let Some(page) = page.get_mut(..length) else { return };
        page[22..26].fill(0);
        let sum = page.iter().fold(0_u32, |sum, byte| {
            (0..8).fold(sum ^ u32::from(*byte) << 24, |sum, _| {
                (sum << 1) ^ (0x04c1_1db7 & (sum >> 31).wrapping_neg())
            })
        });
        page[22..26].copy_from_slice(&sum.to_le_bytes());
        at += length;
    }
}
