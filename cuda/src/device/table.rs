//! Structs that host and device share: one table for each file of structs, whose layout both sides
//! assert.
//!
//! The offsets in a table are asserted of its structs, and written into `*abi_offsets.cuh`, which
//! assert them of the structs in `kernels/*arguments.cuh`.

/// Defines argument structs whose fields lie at the offsets that the rows say.
macro_rules! arguments {
    ($(
        $(#[$meta:meta])*
        $name:ident: $bytes:literal {
            $($(#[$field_meta:meta])* $offset:literal => $field:ident: $type:ty,)*
        }
    )*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Debug)]
            #[repr(C)]
            pub struct $name {
                $($(#[$field_meta])* pub $field: $type,)*
            }

            // SAFETY: each of its fields is plain, and the compiler has seen that.
            unsafe impl unisono_reducers::Plain for $name {}

            const _: () = {
                use std::mem::offset_of;
                const fn expect_plain<T: unisono_reducers::Plain>() {}
                $(expect_plain::<$type>();)*
                $(assert!(offset_of!($name, $field) == $offset);)*
                assert!(size_of::<$name>() == $bytes);
            };
        )*

        /// The same as assertions in C++.
        #[cfg(test)]
        pub(super) const LAYOUT: &str = concat!($(
            $("static_assert(OFFSET_OF(", stringify!($name), ", ", stringify!($field), ") == ", $offset, ");\n",)*
            "static_assert(sizeof(", stringify!($name), ") == ", $bytes, ");\n",
        )*);
    };
}

pub(super) use arguments;

#[cfg(test)]
mod tests {
    use crate::device::{arguments, model, schedule};

    #[test]
    fn both_sides_assert_the_same_layout() {
        expect("arguments.rs", arguments::LAYOUT, include_str!("../../kernels/abi_offsets.cuh"));
        expect("model.rs", model::LAYOUT, include_str!("../../kernels/model_abi_offsets.cuh"));
        expect("schedule.rs", schedule::LAYOUT, include_str!("../../kernels/schedule_abi_offsets.cuh"));
    }

    fn expect(table: &str, layout: &str, written: &str) {
        let head = format!("// Written by the table in `src/device/{table}`.\n#pragma once\n\n");
        assert!(written == format!("{head}{layout}"), "{table}'s must be:\n{head}{layout}");
    }
}
