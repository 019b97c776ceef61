//! Errors without a usable driver or GPU.

use penstock_device::{Gpu, GpuError};

use crate::fake::{Library, with, with_driver};

#[test]
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn a_missing_driver_is_reported() {
    with(Library::None, &[], || match Gpu::open(0) {
        Err(error) => {
            assert_eq!(error, GpuError::NoDriver);
            assert_eq!(error.to_string(), "there is no CUDA driver here (no `libcuda.so.1` can be loaded)");
            assert_eq!(Gpu::check(0), Err(GpuError::NoDriver), "a second call gives the same error");
        }
        Ok(gpu) => eprintln!("SKIPPED: this machine has a real driver, and {}", gpu.name()),
    });
}

#[test]
fn a_library_that_is_not_a_driver_is_reported() {
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
fn a_driver_without_a_device_is_reported() {
    with_driver(&[("FAKE_CUDA_DEVICES", "0")], || {
        assert_eq!(Gpu::check(0), Err(GpuError::NoDevice));
    });
}

#[test]
fn an_unknown_device_number_is_reported() {
    with_driver(&[("FAKE_CUDA_DEVICES", "2")], || {
        assert_eq!((Gpu::check(0), Gpu::check(1)), (Ok(()), Ok(())));
        let error = Gpu::open(2).unwrap_err();
        assert_eq!(error, GpuError::NoSuchDevice { number: 2, count: 2 });
        assert_eq!(
            error.to_string(),
            "there is no CUDA device 2 here: the driver numbers devices from 0 and shows 2 of them"
        );
    });
}

#[test]
fn a_device_has_a_name_and_a_uuid() {
    with_driver(&[("FAKE_CUDA_DEVICES", "2")], || {
        let gpu = Gpu::open(1).unwrap();
        assert_eq!((gpu.number(), gpu.name()), (1, "Fake GPU 1"));
        assert_eq!(gpu.uuid(), "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f");
    });
}
