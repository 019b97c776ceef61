//! Converts a WAV file to a log-mel spectrogram, the usual input of networks for speech and sound.

mod fft;
mod lanes;
mod mel;
mod spectrogram;
pub mod wav;

use penstock_guest::prelude::*;

pub use mel::{Height, Scale};
pub use spectrogram::Spectrogram;

/// Params that a pipeline may set. The defaults are those of Whisper's front end, before its scaling of the result.
#[derive(Clone, Debug, PartialEq, Params)]
pub struct Settings {
    /// Sample rate that every file must have, in samples per second; files with another rate are refused, not resampled.
    #[param(default = 16000, min = 1, max = 768000)]
    pub sample_rate: u32,
    /// Number of samples in a frame; a product of 2, 3, 5 and 7.
    #[param(default = 400, min = 4, max = 16384)]
    pub n_fft: u32,
    /// Number of samples from the start of a frame to the start of the next.
    #[param(default = 160, min = 1, max = 65536)]
    pub hop: u32,
    /// Number of mel filters.
    #[param(default = 80, min = 1, max = 1024)]
    pub n_mels: u32,
    /// Lower edge of the lowest filter, in Hz.
    #[param(default = 0.0, min = 0)]
    pub f_min: f32,
    /// Upper edge of the highest filter, in Hz; the default is half the sample rate.
    pub f_max: Option<f32>,
    /// Formula of the mel scale: `slaney` or `htk`.
    #[param(default = "slaney")]
    pub mel_scale: Scale,
    /// Height of the filters' triangles: `area` makes their areas equal, `one` makes all of height 1.
    #[param(default = "area")]
    pub filter_height: Height,
    /// Logarithm to take: `log10`, `natural`, or `decibel`.
    #[param(default = "log10")]
    pub log: Logarithm,
    /// Minimum energy, above 0; smaller energies are raised to it.
    #[param(default = 1e-10)]
    pub floor: f32,
    /// Signal beyond the ends of the clip: `reflect` mirrors half a frame there, so that frames are centred; `none` starts
    /// the first frame at the first sample.
    #[param(default = "reflect")]
    pub edges: Edges,
    /// Length to which clips are cut or padded with silence, in seconds; by default clips keep their length.
    #[param(min = 0.001, max = 3600)]
    pub seconds: Option<f32>,
}

/// Logarithm to take of the energies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Params)]
pub enum Logarithm {
    /// Logarithm to base 10.
    Log10,
    /// Logarithm to base e.
    Natural,
    /// Ten times the logarithm to base 10.
    Decibel,
}

/// Signal beyond the ends of a clip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Params)]
pub enum Edges {
    /// The clip is mirrored, for half a frame.
    Reflect,
    /// Frames do not extend beyond the clip.
    None,
}

/// The stage, with the values precomputed for its settings.
#[derive(Debug)]
pub struct LogMel(Spectrogram);

/// Converts the WAV file in `bytes` to `mel`: float32, [frames, n_mels], the logarithm of the energy in each mel filter.
/// Removes `bytes`. Channels are averaged.
#[stage(wants("bytes"), makes("mel"), removes("bytes"))]
impl SampleStage for LogMel {
    type Params = Settings;

    fn new(settings: &Settings) -> Result<Self> {
        Spectrogram::new(settings).map(Self)
    }

    fn process(&mut self, mut item: Item) -> Result<Outcome> {
        let clip = wav::read(item.bytes("bytes")?)?;
        let wanted = self.0.settings().sample_rate;
        ensure!(clip.rate == wanted, "the sample rate is {} Hz, but `sample_rate` is {wanted}", clip.rate);
        let mel = self.0.of(clip.samples)?;
        item.remove("bytes");
        item.set("mel", mel);
        Ok(Outcome::Keep(item))
    }
}

#[cfg(test)]
mod tests;
