//! Arrays that do not lie one element after the other, to contiguous memory and back.

/// Copies a strided array to contiguous elements. The array has extents `shape` and begins with
/// `from`. Its neighbors along each dimension are `strides` elements apart, the last dimension
/// first.
///
/// All extents and strides are supported: rows of a larger matrix, transposes, a repeated row
/// (stride 0).
///
/// # Panics
/// Strides and extents differ in number, the array has another number of elements than `into`, or
/// it reaches beyond `from`.
pub fn pack<T: Copy>(into: &mut [T], from: &[T], shape: &[usize], strides: &[usize]) {
    let loops = Loops::new(shape, strides, into.len(), from.len());
    loops.run(|outer, inner, dense, offset| {
        tile(outer, inner, |dim| (dim.dense, dim.stride), into, from, dense, offset)
    });
}

/// Copies contiguous elements to a strided array that begins with `into`.
///
/// # Panics
/// Same as [`pack`], with `into` and `from` exchanged.
pub fn unpack<T: Copy>(into: &mut [T], from: &[T], shape: &[usize], strides: &[usize]) {
    let loops = Loops::new(shape, strides, from.len(), into.len());
    loops.run(|outer, inner, dense, offset| {
        tile(outer, inner, |dim| (dim.stride, dim.dense), into, from, offset, dense)
    });
}

/// One dimension: its extent, and the distance of neighbors in the array and in contiguous memory.
#[derive(Clone, Copy)]
struct Dim {
    extent: usize,
    stride: usize,
    dense: usize,
}

/// The neutral dimension: one element.
const POINT: Dim = Dim { extent: 1, stride: 1, dense: 1 };

/// The dimensions of an array, none of extent 1 and none that could be one with the next.
struct Loops(Vec<Dim>);

impl Loops {
    /// Checks an array within `room` elements that has `count` elements.
    fn new(shape: &[usize], strides: &[usize], count: usize, room: usize) -> Self {
        assert_eq!(shape.len(), strides.len(), "a stride for each extent");
        let elements = shape.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
        assert_eq!(elements, Some(count), "elements of {shape:?}");
        let last = shape.iter().zip(strides).try_fold(0usize, |sum, (&extent, &stride)| {
            sum.checked_add(stride.checked_mul(extent.saturating_sub(1))?)
        });
        let fits = count == 0 || last.is_some_and(|last| last < room);
        assert!(fits, "{shape:?} elements {strides:?} apart reach beyond {room}");
        Self::merged(shape, strides)
    }

    fn merged(shape: &[usize], strides: &[usize]) -> Self {
        let mut dims: Vec<Dim> = Vec::with_capacity(shape.len() + 2);
        let mut dense = shape.iter().product::<usize>();
        for (&extent, &stride) in shape.iter().zip(strides) {
            dense = dense.checked_div(extent).unwrap_or(0);
            match dims.last_mut() {
                _ if extent == 1 => {}
                Some(outer) if outer.stride == stride * extent => {
                    *outer = Dim { extent: outer.extent * extent, stride, dense };
                }
                _ => dims.push(Dim { extent, stride, dense }),
            }
        }
        Self(dims)
    }

    /// Calls `tile` for each tile of the two innermost dimensions in order, with its offsets in
    /// contiguous memory and in the array.
    fn run(&self, mut tile: impl FnMut(Dim, Dim, usize, usize)) {
        let (outermost, [outer, inner]) = match self.0[..] {
            [] => (&[][..], [POINT, POINT]),
            [inner] => (&[][..], [POINT, inner]),
            [ref rest @ .., outer, inner] => (rest, [outer, inner]),
        };
        // Rows that are contiguous on both sides are copied whole.
        let side = if inner.stride == 1 { usize::MAX } else { TILE };
        walk(outermost, 0, 0, &mut |start, offset| {
            for (row, rows) in tiles(outer.extent, side) {
                for (column, columns) in tiles(inner.extent, side) {
                    let (outer, inner) = (Dim { extent: rows, ..outer }, Dim { extent: columns, ..inner });
                    let dense = start + row * outer.dense + column * inner.dense;
                    tile(outer, inner, dense, offset + row * outer.stride + column * inner.stride);
                }
            }
        });
    }
}

/// Elements per side of a tile that is copied at once where rows are not contiguous. A tile has
/// whole cache lines on both sides, and fits in the L1 cache.
const TILE: usize = 32;

/// Offset and length of each part of at most `side` of `extent` elements.
fn tiles(extent: usize, side: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..extent).step_by(side).map(move |start| (start, side.min(extent - start)))
}

/// Calls `body` for every index of `dims`, with its offsets in contiguous memory and in the array.
fn walk(dims: &[Dim], start: usize, offset: usize, body: &mut impl FnMut(usize, usize)) {
    match dims {
        [] => body(start, offset),
        [dim, inner @ ..] => {
            (0..dim.extent).for_each(|i| walk(inner, start + i * dim.dense, offset + i * dim.stride, body));
        }
    }
}

/// Copies two dimensions. `steps` has the distances of neighbors in `target` and in `source` for
/// each. The copy begins at `target_start` and `source_start`.
#[inline(always)]
fn tile<T: Copy>(
    outer: Dim,
    inner: Dim,
    steps: impl Fn(Dim) -> (usize, usize),
    target: &mut [T],
    source: &[T],
    target_start: usize,
    source_start: usize,
) {
    let ((row_to, row_from), (step_to, step_from)) = (steps(outer), steps(inner));
    if row_from == 1 && step_to == 1 && step_from != 1 {
        let turned = transpose_tile(outer.extent, inner.extent, source, source_start, step_from);
        for (row, elements) in turned.chunks_exact(TILE).take(outer.extent).enumerate() {
            target[target_start + row * row_to..][..inner.extent].copy_from_slice(&elements[..inner.extent]);
        }
        return;
    }
    if row_to == 1 && step_from == 1 && step_to != 1 {
        let turned = transpose_tile(inner.extent, outer.extent, source, source_start, row_from);
        for (column, elements) in turned.chunks_exact(TILE).take(inner.extent).enumerate() {
            target[target_start + column * step_to..][..outer.extent]
                .copy_from_slice(&elements[..outer.extent]);
        }
        return;
    }
    for row in 0..outer.extent {
        let (target_start, source_start) = (target_start + row * row_to, source_start + row * row_from);
        if (step_to, step_from) == (1, 1) {
            target[target_start..][..inner.extent].copy_from_slice(&source[source_start..][..inner.extent]);
        } else {
            (0..inner.extent)
                .for_each(|i| target[target_start + i * step_to] = source[source_start + i * step_from]);
        }
    }
}

/// Transposes `rows` rows of `length` contiguous elements, `stride` apart, through a buffer, so
/// that every cache line of both sides is accessed once. Lines a power of two apart would evict
/// each other.
#[inline(always)]
fn transpose_tile<T: Copy>(
    length: usize,
    rows: usize,
    source: &[T],
    start: usize,
    stride: usize,
) -> [T; TILE * TILE] {
    let mut turned = [source[start]; TILE * TILE];
    for row in 0..rows {
        let elements = &source[start + row * stride..][..length];
        elements.iter().enumerate().for_each(|(i, element)| turned[i * TILE + row] = *element);
    }
    turned
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Offsets of all elements, index by index.
    fn naive(shape: &[usize], strides: &[usize]) -> Vec<usize> {
        let mut places = vec![0];
        for (&extent, &stride) in shape.iter().zip(strides) {
            places = places.iter().flat_map(|place| (0..extent).map(move |i| place + i * stride)).collect();
        }
        places
    }

    fn check(shape: &[usize], strides: &[usize]) {
        let places = naive(shape, strides);
        let room = places.iter().max().map_or(0, |last| last + 1);
        let source: Vec<u32> = (0..room as u32).map(|index| index.wrapping_mul(2_654_435_761)).collect();
        let mut packed = vec![0; places.len()];
        pack(&mut packed, &source, shape, strides);
        let expected: Vec<u32> = places.iter().map(|&place| source[place]).collect();
        assert_eq!(packed, expected, "{shape:?} {strides:?}");
        let mut back = vec![7; room];
        unpack(&mut back, &packed, shape, strides);
        let untouched = |place: usize| if places.contains(&place) { source[place] } else { 7 };
        assert_eq!(back, (0..room).map(untouched).collect::<Vec<_>>(), "{shape:?} {strides:?}");
    }

    #[test]
    fn rows_transposes_and_repetitions() {
        check(&[], &[]);
        check(&[0, 3], &[3, 1]);
        check(&[40], &[1]);
        check(&[37, 21], &[64, 1]);
        check(&[37, 21], &[1, 37]);
        check(&[5, 4, 3], &[1, 15, 5]);
        check(&[2, 3, 4, 5], &[60, 20, 5, 1]);
        check(&[3, 4], &[0, 1]);
        check(&[1, 6, 1], &[99, 2, 5]);
    }

    proptest! {
        #[test]
        fn any_shape_and_strides(dims in proptest::collection::vec((0usize..20, 0usize..30), 0..4)) {
            let (shape, strides): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
            check(&shape, &strides);
        }
    }

    #[test]
    #[should_panic(expected = "reach beyond")]
    fn arrays_stay_within_their_memory() {
        pack(&mut [0; 4], &[0; 5], &[2, 2], &[4, 1]);
    }

    #[test]
    #[should_panic(expected = "reach beyond")]
    fn strides_do_not_wrap_around() {
        pack(&mut [0; 4], &[0; 5], &[2, 2], &[usize::MAX, 1]);
    }
}
