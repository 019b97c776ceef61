//! Parts of a decoded image that are needed, and the size to which they are resized: the leading steps of a list, fused.

use crate::decode::orientation::Orientation;
use crate::params::Interpolation;
use crate::step::{Rect, Resizing, Size, Step};

/// A crop, then a resize, then a crop of the result, then flips.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct View {
    /// Part of the image that is resized.
    pub crop: Rect,
    /// Size of the resized part, with the interpolation; `None` if the part keeps its size.
    pub resize: Option<Resizing>,
    /// Part of the resized part that becomes the result.
    pub window: Rect,
    /// Mirrors the result from left to right.
    pub flip_across: bool,
    /// Mirrors the result from top to bottom.
    pub flip_down: bool,
}

impl View {
    /// View that leaves an image of this size as it is.
    pub(crate) fn whole(size: Size) -> Self {
        let whole = Rect::whole(size);
        Self { crop: whole, resize: None, window: whole, flip_across: false, flip_down: false }
    }

    /// View of the leading steps that can be fused, and the remaining steps.
    pub(crate) fn of(size: Size, steps: &[Step]) -> (Self, &[Step]) {
        let mut view = Self::whole(size);
        let count = steps.iter().take_while(|step| view.add(step)).count();
        (view, &steps[count..])
    }

    /// Adds a step; false if it cannot be fused.
    fn add(&mut self, step: &Step) -> bool {
        match *step {
            Step::FlipHorizontal => self.flip_across = !self.flip_across,
            Step::FlipVertical => self.flip_down = !self.flip_down,
            Step::Crop(part) => {
                // Flips come last, so a part of the flipped result is on the other side.
                let part = mirrored(part, self.window.size(), self.flip_across, self.flip_down);
                let base = if self.resize.is_some() { &mut self.window } else { &mut self.crop };
                *base = Rect { left: base.left + part.left, top: base.top + part.top, ..part };
                if self.resize.is_none() {
                    self.window = Rect::whole(part.size());
                }
            }
            Step::Resize(resizing)
                if self.resize.is_none() && (resizing.interpolation.is_symmetric() || !self.is_flipped()) =>
            {
                self.resize = Some(resizing);
                self.window = Rect::whole(resizing.size);
            }
            _ => return false,
        }
        true
    }

    fn is_flipped(&self) -> bool {
        self.flip_across || self.flip_down
    }

    /// True if an image may be resized before it is turned upright: the result is the same.
    pub(crate) fn may_precede(&self, orientation: Orientation) -> bool {
        let Some(Resizing { interpolation, .. }) = self.resize else { return true };
        // Rows and columns are resized one after the other, with bytes in between, which cuts what overshoots.
        let overshoots = matches!(interpolation, Interpolation::Bicubic | Interpolation::Lanczos);
        orientation == Orientation::default()
            || interpolation.is_symmetric() && !(orientation.transpose && overshoots)
    }

    pub(crate) fn size(&self) -> Size {
        self.window.size()
    }

    /// Size of the whole resized part.
    pub(crate) fn resized(&self) -> Size {
        self.resize.map_or(self.crop.size(), |resize| resize.size)
    }

    /// View of the image as it is stored, whose size is `stored`. If the orientation contains a turn, the result of that view must
    /// be transposed.
    pub(crate) fn stored(&self, orientation: Orientation, stored: Size) -> Self {
        let shown = if orientation.transpose { stored.turned() } else { stored };
        let (across, down) = (orientation.flip_across, orientation.flip_down);
        let mut view = Self {
            crop: mirrored(self.crop, shown, across, down),
            window: mirrored(self.window, self.resized(), across, down),
            flip_across: self.flip_across ^ across,
            flip_down: self.flip_down ^ down,
            ..*self
        };
        if orientation.transpose {
            view.crop = turned(view.crop);
            view.window = turned(view.window);
            view.resize = view.resize.map(|resize| Resizing { size: resize.size.turned(), ..resize });
            (view.flip_across, view.flip_down) = (view.flip_down, view.flip_across);
        }
        view
    }

    /// View without its resize for an image that is decoded at its size divided by `shrink`, and this view of the result.
    pub(crate) fn decoded(&self, shrink: u32, stored: Size) -> (Self, Self) {
        let Rect { left, top, width, height } = self.crop;
        // Whole pixels of the decoded image.
        let (before, above) = (left % shrink, top % shrink);
        let crop = Rect {
            left: left - before,
            top: top - above,
            width: (before + width).next_multiple_of(shrink).min(stored.width + before - left),
            height: (above + height).next_multiple_of(shrink).min(stored.height + above - top),
        };
        let size = Size { width: crop.width.div_ceil(shrink), height: crop.height.div_ceil(shrink) };
        let resize = Some(Resizing { size, interpolation: Interpolation::Box, antialias: true });
        let part = Self { crop, resize, ..Self::whole(size) };
        (part, Self { crop: Rect { left: before, top: above, ..self.crop }, ..*self })
    }

    /// Largest of 1, 2, 4 and 8 by which the image can be divided without enlarging the crop afterwards.
    pub(crate) fn reduction(&self) -> u32 {
        let Some(Resizing { size, .. }) = self.resize else { return 1 };
        let is_enough = |by: &u32| {
            self.crop.width.div_ceil(*by) >= size.width && self.crop.height.div_ceil(*by) >= size.height
        };
        [8, 4, 2].into_iter().find(is_enough).unwrap_or(1)
    }
}

fn mirrored(part: Rect, size: Size, across: bool, down: bool) -> Rect {
    Rect {
        left: if across { size.width - part.left - part.width } else { part.left },
        top: if down { size.height - part.top - part.height } else { part.top },
        ..part
    }
}

fn turned(part: Rect) -> Rect {
    Rect { left: part.top, top: part.left, width: part.height, height: part.width }
}
