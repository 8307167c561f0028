//! The element types, one row each.

/// Type of the elements of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum DType {
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
    F16,
    BF16,
    F32,
    F64,
    F8E4M3,
    F8E5M2,
    I16,
    U16,
    Bool,
    C64,
    C128,
    F32I32,
    F64I64,
    I32I32,
    I64I64,
}

/// The kind of the elements of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DTypeClass {
    /// Integers, signed or not.
    Integer,
    /// Floats of any width.
    Float,
    /// Truth values.
    Bool,
    /// Complex numbers.
    Complex,
    /// Values with an index.
    Located,
}

impl DType {
    /// Every element type, in the order of their codes.
    pub const ALL: [DType; 21] = [
        DType::I8,
        DType::U8,
        DType::I32,
        DType::U32,
        DType::I64,
        DType::U64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
        DType::F8E4M3,
        DType::F8E5M2,
        DType::I16,
        DType::U16,
        DType::Bool,
        DType::C64,
        DType::C128,
        DType::F32I32,
        DType::F64I64,
        DType::I32I32,
        DType::I64I64,
    ];

    /// The element types that GPU kernels know. All others run on the CPU only.
    pub const ON_GPU: [DType; 12] = *Self::ALL.first_chunk().expect("twelve types");

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::I8 | DType::U8 | DType::F8E4M3 | DType::F8E5M2 | DType::Bool => 1,
            DType::F16 | DType::BF16 | DType::I16 | DType::U16 => 2,
            DType::I32 | DType::U32 | DType::F32 => 4,
            DType::I64 | DType::U64 | DType::F64 | DType::C64 | DType::F32I32 | DType::I32I32 => 8,
            DType::C128 | DType::F64I64 | DType::I64I64 => 16,
        }
    }

    /// The name users write and tables print, as in nccl-tests.
    pub const fn name(self) -> &'static str {
        match self {
            DType::I8 => "int8",
            DType::U8 => "uint8",
            DType::I32 => "int32",
            DType::U32 => "uint32",
            DType::I64 => "int64",
            DType::U64 => "uint64",
            DType::F16 => "half",
            DType::BF16 => "bfloat16",
            DType::F32 => "float",
            DType::F64 => "double",
            DType::F8E4M3 => "fp8_e4m3",
            DType::F8E5M2 => "fp8_e5m2",
            DType::I16 => "int16",
            DType::U16 => "uint16",
            DType::Bool => "bool",
            DType::C64 => "complex64",
            DType::C128 => "complex128",
            DType::F32I32 => "float_int32",
            DType::F64I64 => "double_int64",
            DType::I32I32 => "int32_int32",
            DType::I64I64 => "int64_int64",
        }
    }

    /// The type whose code (`self as u8`) is `code`.
    pub fn from_code(code: u8) -> Option<DType> {
        Self::ALL.get(code as usize).copied()
    }

    /// Returns true for floating-point types.
    pub const fn is_float(self) -> bool {
        matches!(self.class(), DTypeClass::Float)
    }

    /// Returns what the elements are.
    pub const fn class(self) -> DTypeClass {
        match self {
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 | DType::F8E4M3 | DType::F8E5M2 => {
                DTypeClass::Float
            }
            DType::I8 | DType::U8 | DType::I16 | DType::U16 => DTypeClass::Integer,
            DType::I32 | DType::U32 | DType::I64 | DType::U64 => DTypeClass::Integer,
            DType::Bool => DTypeClass::Bool,
            DType::C64 | DType::C128 => DTypeClass::Complex,
            DType::F32I32 | DType::F64I64 | DType::I32I32 | DType::I64I64 => DTypeClass::Located,
        }
    }

    /// Returns true if GPU kernels know the type.
    pub const fn is_on_gpu(self) -> bool {
        (self as usize) < Self::ON_GPU.len()
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
