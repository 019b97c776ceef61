//! Turns a WAV file into a log-mel spectrogram, what networks for speech and sound are trained on.

mod fft;
mod lanes;
mod mel;
mod spectrogram;
pub mod wav;

use penstock_guest::prelude::*;

pub use mel::{Height, Scale};
pub use spectrogram::Spectrogram;

/// What a pipeline may set. The defaults are those of Whisper's front end, before its own scaling of the result.
#[derive(Clone, Debug, PartialEq, Params)]
pub struct Settings {
    /// Samples per second that every file must have; others are refused, not resampled.
    #[param(default = 16000, min = 1, max = 768000)]
    pub sample_rate: u32,
    /// Samples in a frame; a product of 2, 3, 5 and 7.
    #[param(default = 400, min = 4, max = 16384)]
    pub n_fft: u32,
    /// Samples from the start of a frame to the start of the next.
    #[param(default = 160, min = 1, max = 65536)]
    pub hop: u32,
    /// How many mel filters.
    #[param(default = 80, min = 1, max = 1024)]
    pub n_mels: u32,
    /// Where the lowest filter begins, in Hz.
    #[param(default = 0.0, min = 0)]
    pub f_min: f32,
    /// Where the highest filter ends, in Hz; half the sample rate without it.
    pub f_max: Option<f32>,
    /// The formula of the mel scale: `slaney` or `htk`.
    #[param(default = "slaney")]
    pub mel_scale: Scale,
    /// How high the filters' triangles are: `area` makes their areas equal, `one` makes all as high as 1.
    #[param(default = "area")]
    pub filter_height: Height,
    /// Which logarithm is taken: `log10`, `natural`, or `decibel`.
    #[param(default = "log10")]
    pub log: Logarithm,
    /// Energies below this count as this; never 0.
    #[param(default = 1e-10)]
    pub floor: f32,
    /// What is before the first sample and after the last one: `reflect` mirrors half a frame there, so that frames are
    /// centred; `none` begins the first frame at the first sample.
    #[param(default = "reflect")]
    pub edges: Edges,
    /// Longer clips are cut to this, shorter ones filled up with silence; without it clips keep their length.
    #[param(min = 0.001, max = 3600)]
    pub seconds: Option<f32>,
}

/// Which logarithm is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Params)]
pub enum Logarithm {
    /// To base 10.
    Log10,
    /// To base e.
    Natural,
    /// Ten times that to base 10.
    Decibel,
}

/// What frames find beyond the ends of a clip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Params)]
pub enum Edges {
    /// The clip mirrored, for half a frame.
    Reflect,
    /// Nothing: frames lie within the clip.
    None,
}

/// The stage, ready for clips.
#[derive(Debug)]
pub struct LogMel(Spectrogram);

/// Turns the WAV file in `bytes` into `mel`: float32, [frames, n_mels], the logarithm of the energy in each mel filter.
/// The file itself does not go on. Channels are averaged.
#[stage(wants("bytes"), makes("mel"), removes("bytes"))]
impl SampleStage for LogMel {
    type Params = Settings;

    fn new(settings: &Settings) -> Result<Self> {
        Spectrogram::new(settings).map(Self)
    }

    fn process(&mut self, mut item: Item) -> Result<Outcome> {
        let clip = wav::read(item.bytes("bytes")?)?;
        let wanted = self.0.settings().sample_rate;
        ensure!(clip.rate == wanted, "the sample rate is {} Hz, `sample_rate` is {wanted}", clip.rate);
        let mel = self.0.of(clip.samples)?;
        item.remove("bytes");
        item.set("mel", mel);
        Ok(Outcome::Keep(item))
    }
}

#[cfg(test)]
mod tests;
