#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{call}` returned {name} ({meaning})")]
pub struct DriverError {
    pub call: &'static str,
    pub code: u32,
    pub name: String,
    pub meaning: String,
}

/// Reason why a GPU cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    #[error("there is no CUDA driver here (no `libcuda.so.1` can be loaded)")]
    NoDriver,
    #[error("the CUDA driver here has no function `{name}`: it is older than CUDA 11.4, or no driver at all")]
    MissingSymbol { name: &'static str },
    #[error("there is a CUDA driver here, but it shows no device (`CUDA_VISIBLE_DEVICES` may hide them)")]
    NoDevice,
    #[error(
        "there is no CUDA device {number} here: the driver numbers devices from 0 and shows {count} of them"
    )]
    NoSuchDevice { number: u32, count: u32 },
    #[error("the CUDA driver of this machine cannot be used")]
    Driver(#[from] DriverError),
    #[error("cannot start the thread that copies to the device: {0}")]
    Thread(String),
}

const OUT_OF_MEMORY: u32 = 2;

impl DriverError {
    /// True if the device or the system was out of memory; the driver remains usable.
    pub fn is_out_of_memory(&self) -> bool {
        self.code == OUT_OF_MEMORY
    }
}
