/// Defines a struct of sums with its arithmetic, which saturates: rows read from a file cannot overflow.
macro_rules! sums {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: u64,)+
        }

        impl $name {
            /// Number of sums in the struct.
            pub const WIDTH: usize = [$(stringify!($field)),+].len();

            /// All sums, in the order of the fields.
            pub fn numbers(&self) -> [u64; Self::WIDTH] {
                [$(self.$field),+]
            }

            /// Restores the struct from [`Self::numbers`].
            pub fn of_numbers([$($field),+]: [u64; Self::WIDTH]) -> Self {
                Self { $($field),+ }
            }

            /// Adds the sums of another interval.
            pub fn merge(&mut self, other: &Self) {
                $(self.$field = self.$field.saturating_add(other.$field);)+
            }

            /// Difference to `earlier`, an earlier reading.
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($field: self.$field.saturating_sub(earlier.$field)),+ }
            }
        }
    };
}

pub(super) use sums;
