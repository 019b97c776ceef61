//! What is said where there is no GPU.

use penstock_device::{Gpu, GpuError};

use crate::fake::{Library, with, with_driver};

#[test]
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn without_a_driver_it_is_said() {
    with(Library::None, &[], || match Gpu::open(0) {
        Err(error) => {
            assert_eq!(error, GpuError::NoDriver);
            assert_eq!(error.to_string(), "there is no CUDA driver here (no `libcuda.so.1` can be loaded)");
            assert_eq!(Gpu::check(0), Err(GpuError::NoDriver), "asking again changes nothing");
        }
        Ok(gpu) => eprintln!("SKIPPED: this machine has a driver of its own, and {}", gpu.name()),
    });
}

#[test]
fn a_library_that_is_no_driver_is_told() {
    with(Library::Empty, &[], || {
        assert_eq!(Gpu::check(0), Err(GpuError::MissingSymbol { name: "cuInit" }));
    });
}

#[test]
fn a_function_that_is_missing_is_named() {
    with(Library::Partial, &[], || {
        let error = Gpu::check(0).unwrap_err();
        assert_eq!(error, GpuError::MissingSymbol { name: "cuEventQuery" });
        assert_eq!(
            error.to_string(),
            "the CUDA driver here has no function `cuEventQuery`: it is older than CUDA 11.4, or no driver at all"
        );
    });
}

#[test]
fn a_driver_without_a_device_is_told() {
    with_driver(&[("FAKE_CUDA_DEVICES", "0")], || {
        assert_eq!(Gpu::check(0), Err(GpuError::NoDevice));
    });
}

#[test]
fn a_number_that_no_device_has_is_told() {
    with_driver(&[("FAKE_CUDA_DEVICES", "2")], || {
        assert_eq!((Gpu::check(0), Gpu::check(1)), (Ok(()), Ok(())));
        let error = Gpu::open(2).unwrap_err();
        assert_eq!(error, GpuError::NoSuchDevice { number: 2, count: 2 });
        assert_eq!(error.to_string(), "there is no CUDA device 2 here: the driver shows 2, counted from 0");
    });
}

#[test]
fn a_device_tells_its_names() {
    with_driver(&[("FAKE_CUDA_DEVICES", "2")], || {
        let gpu = Gpu::open(1).unwrap();
        assert_eq!((gpu.number(), gpu.name()), (1, "Fake GPU 1"));
        assert_eq!(gpu.uuid(), "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f");
    });
}
