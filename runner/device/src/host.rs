use memmap2::MmapMut;
use penstock_engine::memory::Maker;

/// Memory of this process in whole pages, for who hands batches on without copying them.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostMemory;

impl Maker for HostMemory {
    type Region = MmapMut;

    fn make(&self, len: usize) -> Option<MmapMut> {
        let made = MmapMut::map_anon(len);
        made.inspect_err(|error| tracing::debug!(len, %error, "no memory for a batch")).ok()
    }
}

#[cfg(test)]
mod tests {
    use penstock_engine::memory::{BatchMemory, Pool};

    use super::*;

    #[test]
    fn arrays_begin_with_a_page_and_can_be_written() {
        let memory = Pool::new(HostMemory);
        let mut block = memory.take(10_000).unwrap();
        let bytes: &mut [u8] = (*block).as_mut();
        assert_eq!((bytes.as_ptr() as usize % 4096, bytes.len()), (0, 10_000));
        assert!(bytes.iter().all(|byte| *byte == 0));
        bytes.fill(7);
    }

    #[test]
    fn what_the_system_does_not_have_is_not_given() {
        assert!(HostMemory.make(usize::MAX / 2).is_none());
    }
}
