//! Orientation of photos, as cameras write it into the EXIF metadata.

/// Change from the stored image to the shown one: first the exchange of rows and columns, then the flips.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Orientation {
    pub transpose: bool,
    pub flip_across: bool,
    pub flip_down: bool,
}

/// Number of the tag in the metadata.
const TAG: u16 = 0x112;

impl Orientation {
    /// Orientation in EXIF metadata, which start with the header of a TIFF file. Damaged metadata count as none, as in Pillow.
    pub(crate) fn read(exif: &[u8]) -> Self {
        tag(exif).map_or_else(Self::default, Self::of_number)
    }

    fn of_number(number: u16) -> Self {
        let (transpose, flip_across, flip_down) = match number {
            2 => (false, true, false),
            3 => (false, true, true),
            4 => (false, false, true),
            5 => (true, false, false),
            6 => (true, true, false),
            7 => (true, true, true),
            8 => (true, false, true),
            _ => (false, false, false),
        };
        Self { transpose, flip_across, flip_down }
    }
}

fn tag(exif: &[u8]) -> Option<u16> {
    let is_little = match exif.first_chunk()? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes = *exif.get(at..)?.first_chunk()?;
        Some(if is_little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let long = |at: usize| {
        let bytes = *exif.get(at..)?.first_chunk()?;
        Some(if is_little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    };
    let start = usize::try_from(long(4)?).ok()?;
    let entries = start.checked_add(2)?;
    let place = (0..usize::from(short(start)?))
        .map(|entry| entries + entry * 12)
        .find(|&at| short(at) == Some(TAG))?;
    short(place + 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_byte_orders_are_read_and_damage_is_ignored() {
        let little = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0";
        let big = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0";
        let turned = Orientation { transpose: true, flip_across: true, flip_down: false };
        assert_eq!([Orientation::read(little), Orientation::read(big)], [turned; 2]);
        for length in 0..20 {
            assert_eq!(Orientation::read(&little[..length.min(19)]), Orientation::default());
        }
        assert_eq!(Orientation::read(b"II*\0\xff\xff\xff\xff"), Orientation::default());
    }
}
