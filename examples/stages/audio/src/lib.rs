//! Converts a sound file to a log-mel spectrogram, the usual input of networks for speech and sound, or to its samples.

mod decode;
mod fft;
mod flac;
mod lanes;
mod mask;
mod mel;
mod named;
mod ogg;
mod resample;
mod spectrogram;
mod vorbis;
pub mod wav;

use penstock_guest::prelude::*;

use resample::Resamplers;
use wav::Clip;

pub use mel::{Height, Scale};
pub use spectrogram::Spectrogram;

/// Params that a pipeline may set. The defaults are those of Whisper's front end, before its scaling of the result.
#[derive(Clone, Debug, PartialEq, Params)]
pub struct Settings {
    /// Result: `mel` is the tensor `mel`, [frames, n_mels], `waveform` the tensor `waveform`, [samples]; both float32.
    #[param(default = "mel")]
    pub output: Output,
    /// Sample rate of the result, in samples per second; files with another rate are resampled, as by torchaudio.
    #[param(default = 16000, min = 1, max = 768000)]
    pub sample_rate: u32,
    /// Number of samples in a frame; a product of 2, 3, 5 and 7.
    #[param(default = 400, min = 4, max = 16384)]
    pub n_fft: u32,
    /// Number of samples from the start of a frame to the start of the next.
    #[param(default = 160, min = 1, max = 65536)]
    pub hop: u32,
    /// Number of samples under the window, which stands in the middle of the frame; by default the whole frame.
    #[param(min = 2, max = 16384)]
    pub win_length: Option<u32>,
    /// Power of the amplitudes that the filters sum up: 2 for energies, 1 for amplitudes.
    #[param(default = 2, min = 1, max = 2)]
    pub power: u32,
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
    /// Logarithm to take: `log10`, `natural`, or `decibel`; `none` takes none.
    #[param(default = "log10")]
    pub log: Logarithm,
    /// Largest distance below the highest value of the clip, in the unit of `log`; smaller values are raised.
    #[param(min = 0)]
    pub top_db: Option<f32>,
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
    /// Part of a long clip that `seconds` keeps: its `start`, its `center`, or a `random` part.
    #[param(default = "start")]
    pub crop: Crop,
    /// Order of the dimensions of `mel`: `frames-mels`, or `mels-frames`, as in torchaudio.
    #[param(default = "frames-mels")]
    pub layout: Layout,
    /// Number of random ranges of frames that are masked, as by SpecAugment.
    #[param(default = 0, max = 100)]
    pub time_masks: u32,
    /// Upper bound of the number of frames in a masked range.
    #[param(default = 0)]
    pub time_mask: u32,
    /// Number of random ranges of filters that are masked.
    #[param(default = 0, max = 100)]
    pub frequency_masks: u32,
    /// Upper bound of the number of filters in a masked range.
    #[param(default = 0)]
    pub frequency_mask: u32,
    /// Value of masked elements.
    #[param(default = 0.0)]
    pub mask_value: f32,
}

/// Result of the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Params)]
pub enum Output {
    Mel,
    Waveform,
}

/// Part of a long clip that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Params)]
pub enum Crop {
    Start,
    Center,
    Random,
}

/// Order of the dimensions of a spectrogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Params)]
pub enum Layout {
    FramesMels,
    MelsFrames,
}

/// Logarithm to take of the energies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Params)]
pub enum Logarithm {
    Log10,
    Natural,
    /// Ten times the logarithm to base 10.
    Decibel,
    None,
}

/// Signal beyond the ends of a clip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Params)]
pub enum Edges {
    Reflect,
    None,
}

/// The stage, with the values precomputed for its settings.
#[derive(Debug)]
pub struct Audio {
    spectrogram: Spectrogram,
    resamplers: Resamplers,
}

/// Decodes the sound file in `bytes` (WAV, FLAC, MP3 or Ogg Vorbis), averages its channels, resamples it, and makes `mel`, the logarithm
/// of the energy in each mel filter, or `waveform`. Removes `bytes`. The counter `read_to_end` counts WAV files whose header states no
/// length of the sound, or a larger one than the file has: they are read to their end.
#[stage(
    wants("bytes"),
    makes("$output"),
    removes("bytes"),
    counters("read_to_end"),
    reads(".wav", ".flac", ".mp3", ".ogg")
)]
impl SampleStage for Audio {
    type Params = Settings;

    fn new(settings: &Settings) -> Result<Self> {
        Ok(Self { spectrogram: Spectrogram::new(settings)?, resamplers: Resamplers::default() })
    }

    fn process(&mut self, mut item: Item) -> Result<Outcome> {
        let Clip { rate, samples } = decode::read(item.bytes("bytes")?)?;
        let settings = self.spectrogram.settings().clone();
        let samples = self.resamplers.resample(samples, rate, settings.sample_rate)?;
        let mut rng = item.rng();
        let samples = cut(samples, self.spectrogram.filled(), settings.crop, &mut rng);
        item.remove("bytes");
        match settings.output {
            Output::Waveform => item.set("waveform", Tensor::new([samples.len() as u32], samples)?),
            Output::Mel => {
                let mut mel = self.spectrogram.of(samples)?;
                mask::apply(&mut mel, &settings, &mut rng);
                let mel = if settings.layout == Layout::MelsFrames { transposed(&mel)? } else { mel };
                item.set("mel", mel);
            }
        }
        Ok(Outcome::Keep(item))
    }
}

/// The clip, cut or padded with silence to `length`.
fn cut(mut samples: Vec<f32>, length: Option<usize>, crop: Crop, rng: &mut Rng) -> Vec<f32> {
    let Some(length) = length else { return samples };
    let more = samples.len().saturating_sub(length);
    let start = match crop {
        Crop::Start => 0,
        Crop::Center => more / 2,
        Crop::Random => rng.index(more + 1),
    };
    samples.drain(..start.min(more));
    samples.resize(length, 0.0);
    samples
}

fn transposed(mel: &Tensor<f32>) -> Result<Tensor<f32>> {
    let &[frames, mels] = mel.shape() else { bail!("a spectrogram has two dimensions") };
    let mut turned = Tensor::<f32>::zeros([mels, frames]);
    let values = mel.as_slice();
    for (filter, row) in turned.as_mut_slice().chunks_exact_mut(frames as usize).enumerate() {
        for (frame, value) in row.iter_mut().enumerate() {
            *value = values[frame * mels as usize + filter];
        }
    }
    Ok(turned)
}

#[cfg(test)]
mod tests;
