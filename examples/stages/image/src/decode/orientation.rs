//! Orientation of photos, as cameras and editors write it into the metadata, by the rule of `ImageOps.exif_transpose` in Pillow.

/// Change from the stored image to the shown one: first the exchange of rows and columns, then the flips.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Orientation {
    pub transpose: bool,
    pub flip_across: bool,
    pub flip_down: bool,
}

/// Number of the tag in EXIF metadata.
const TAG: u16 = 0x112;
/// Name of the property in XMP metadata.
const PROPERTY: &[u8] = b"tiff:Orientation";
/// Text before EXIF metadata in JPEGs; some writers repeat it, and some write it in other formats, too.
pub(crate) const PREFIX: &[u8] = b"Exif\0\0";

/// Finding in EXIF metadata.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tag {
    /// The metadata have no tag of the orientation.
    Missing,
    /// The metadata are not those of a TIFF file.
    Unreadable,
    /// Value of the tag; `None` if its type is not a number.
    Value(Option<f64>),
}

impl Orientation {
    /// Orientation in EXIF metadata, which start with the header of a TIFF file, or if they have none, in XMP metadata. Metadata that cannot be
    /// read count as none, as in Pillow.
    pub(crate) fn of(exif: Option<&[u8]>, xmp: Option<&[u8]>) -> Self {
        match exif.map_or(Tag::Missing, tag) {
            Tag::Value(value) => Self::of_number(value.unwrap_or_default()),
            Tag::Missing => Self::of_number(xmp.and_then(property).unwrap_or_default()),
            Tag::Unreadable => Self::default(),
        }
    }

    fn of_number(number: f64) -> Self {
        let whole = number as u8;
        let (transpose, flip_across, flip_down) = match whole {
            _ if f64::from(whole) != number => (false, false, false),
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

/// The tag of the orientation in the first directory.
fn tag(exif: &[u8]) -> Tag {
    let exif = exif.strip_prefix(PREFIX).unwrap_or(exif);
    if exif.is_empty() {
        return Tag::Missing;
    }
    let is_little = match exif.first_chunk() {
        // The second form of each has its number in the wrong order; Pillow takes it, too.
        Some(b"II*\0" | b"II\0*") => true,
        Some(b"MM\0*" | b"MM*\0" | b"MM\0+") => false,
        _ => return Tag::Unreadable,
    };
    let number = Number { is_little };
    let Some(start) = exif.get(4..8) else { return Tag::Unreadable };
    number.search(exif, number.unsigned(start) as usize)
}

/// Reader of numbers in one of the two orders of bytes.
#[derive(Clone, Copy)]
struct Number {
    is_little: bool,
}

impl Number {
    fn unsigned(self, bytes: &[u8]) -> u64 {
        let add = |number, &byte: &u8| number << 8 | u64::from(byte);
        if self.is_little { bytes.iter().rev().fold(0, add) } else { bytes.iter().fold(0, add) }
    }

    /// Searches the directory at `start`. As in Pillow, the values of the tags before it are read: one that lies outside of the metadata
    /// ends the search, but those that would take more than the metadata have are skipped.
    fn search(self, exif: &[u8], start: usize) -> Tag {
        let after = exif.get(start..).unwrap_or_default();
        let Some((count, entries)) = after.split_first_chunk::<2>() else { return Tag::Missing };
        let mut outside = 0;
        for entry in entries.as_chunks::<12>().0.iter().take(self.unsigned(count) as usize) {
            let [id, kind] = [self.unsigned(&entry[..2]) as u16, self.unsigned(&entry[2..4]) as u16];
            let unit = match kind {
                1 | 2 | 6 | 7 => 1,
                3 | 8 => 2,
                4 | 9 | 11 | 13 => 4,
                5 | 10 | 12 | 16 => 8,
                _ => continue,
            };
            let size = unit * self.unsigned(&entry[4..8]);
            let mut value = &entry[8..];
            if size > 4 {
                outside += size;
                if outside > exif.len() as u64 {
                    continue;
                }
                let place = self.unsigned(value) as usize;
                let Some(found) = exif.get(place..).and_then(|after| after.get(..size as usize)) else {
                    return Tag::Missing;
                };
                value = found;
            }
            if id == TAG && size > 0 {
                return Tag::Value(self.value(kind, &value[..unit as usize]));
            }
        }
        Tag::Missing
    }

    /// A value of a type of TIFF files; `None` for bytes and texts.
    fn value(self, kind: u16, bytes: &[u8]) -> Option<f64> {
        let number = self.unsigned(bytes);
        Some(match kind {
            3 | 4 | 13 | 16 => number as f64,
            6 => f64::from(number as i8),
            8 => f64::from(number as i16),
            9 => f64::from(number as i32),
            11 => f64::from(f32::from_bits(number as u32)),
            12 => f64::from_bits(number),
            5 | 10 => {
                let part = |bytes: &[u8]| match self.unsigned(bytes) as u32 {
                    part if kind == 5 => f64::from(part),
                    part => f64::from(part.cast_signed()),
                };
                // The numbers above and below the line of a fraction.
                part(&bytes[..4]) / part(&bytes[4..])
            }
            _ => return None,
        })
    }
}

/// The property in XMP metadata, as an attribute or an element: the first that has a digit.
fn property(xmp: &[u8]) -> Option<f64> {
    xmp.windows(PROPERTY.len()).enumerate().filter(|(_, name)| *name == PROPERTY).find_map(
        |(at, _)| match xmp[at + PROPERTY.len()..] {
            [b'=', b'"', digit, ..] | [b'>', digit, ..] if digit.is_ascii_digit() => {
                Some(f64::from(digit - b'0'))
            }
            _ => None,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Metadata with one directory of these entries: tag, type, number of values, and four bytes.
    fn exif(is_little: bool, entries: &[(u16, u16, u32, [u8; 4])]) -> Vec<u8> {
        let short = |number: u16| if is_little { number.to_le_bytes() } else { number.to_be_bytes() };
        let long = |number: u32| if is_little { number.to_le_bytes() } else { number.to_be_bytes() };
        let mut made = if is_little { b"II*\0".to_vec() } else { b"MM\0*".to_vec() };
        made.extend(long(8));
        made.extend(short(entries.len() as u16));
        for &(tag, kind, count, value) in entries {
            made.extend([short(tag), short(kind)].concat());
            made.extend(long(count));
            made.extend(value);
        }
        made
    }

    const SIX: Tag = Tag::Value(Some(6.0));

    #[test]
    fn both_byte_orders_are_read_and_damage_is_ignored() {
        let little = exif(true, &[(TAG, 3, 1, [6, 0, 0, 0])]);
        let big = exif(false, &[(TAG, 3, 1, [0, 6, 0, 0])]);
        assert_eq!([tag(&little), tag(&big), tag(&[PREFIX, &big].concat())], [SIX; 3]);
        let turned = Orientation { transpose: true, flip_across: true, flip_down: false };
        assert_eq!(Orientation::of(Some(&big), None), turned);
        for length in 0..little.len() {
            let found = tag(&little[..length]);
            assert_eq!(
                found,
                if (1..8).contains(&length) { Tag::Unreadable } else { Tag::Missing },
                "{length}"
            );
        }
        assert_eq!(tag(b"II*\0\xff\xff\xff\xff"), Tag::Missing);
        assert_eq!(tag(b"II+\0\x08\0\0\0\x10\0\0\0\0\0\0\0"), Tag::Unreadable);
        assert_eq!(tag(&[PREFIX, PREFIX, &big].concat()), Tag::Unreadable);
    }

    #[test]
    fn numbers_of_any_type_count_and_bytes_and_texts_do_not() {
        for (kind, value, expected) in [
            (1, [6, 0, 0, 0], Tag::Value(None)),
            (2, [b'6', 0, 0, 0], Tag::Value(None)),
            (3, [6, 0, 0, 0], SIX),
            (4, [6, 0, 0, 0], SIX),
            (6, [6, 0, 0, 0], SIX),
            (7, [6, 0, 0, 0], Tag::Value(None)),
            (9, [250, 255, 255, 255], Tag::Value(Some(-6.0))),
            (11, 6.0_f32.to_le_bytes(), SIX),
            (13, [6, 0, 0, 0], SIX),
            (99, [6, 0, 0, 0], Tag::Missing),
        ] {
            assert_eq!(tag(&exif(true, &[(TAG, kind, 1, value)])), expected, "type {kind}");
        }
        // A fraction behind the directory.
        let mut fraction = exif(true, &[(TAG, 5, 1, [22, 0, 0, 0])]);
        fraction.extend([18, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(tag(&fraction), SIX);
        assert_eq!(tag(&exif(true, &[(TAG, 3, 0, [6, 0, 0, 0])])), Tag::Missing);
        // The first of several values.
        assert_eq!(tag(&exif(true, &[(TAG, 3, 2, [6, 0, 8, 0])])), SIX);
    }

    #[test]
    fn values_outside_of_the_metadata_end_the_search_unless_they_are_too_large() {
        let after = |entry| tag(&exif(true, &[entry, (TAG, 3, 1, [6, 0, 0, 0])]));
        assert_eq!(after((0x10f, 2, 5, [0xff, 0xff, 0, 0])), Tag::Missing);
        assert_eq!(after((0x10f, 12, u32::MAX, [0xff, 0xff, 0, 0])), SIX);
        assert_eq!(after((0x10f, 2, 5, [8, 0, 0, 0])), SIX);
    }

    #[test]
    fn xmp_counts_if_exif_names_no_orientation() {
        let attribute = &b"<rdf:Description tiff:Orientation=\"x\" tiff:Orientation=\"6\"/>"[..];
        let turned = Orientation { transpose: true, flip_across: true, flip_down: false };
        assert_eq!(Orientation::of(None, Some(attribute)), turned);
        assert_eq!(Orientation::of(None, Some(b"<tiff:Orientation>6</tiff:Orientation>")), turned);
        assert_eq!(
            Orientation::of(None, Some(b"tiff:Orientation='6' tiff:Orientation")),
            Orientation::default()
        );
        let upright = exif(true, &[(TAG, 3, 1, [1, 0, 0, 0])]);
        assert_eq!(Orientation::of(Some(&upright), Some(attribute)), Orientation::default());
        assert_eq!(Orientation::of(Some(&exif(true, &[])), Some(attribute)), turned);
        assert_eq!(Orientation::of(Some(b"no metadata"), Some(attribute)), Orientation::default());
    }
}
