//! GPU code inside of a shared library: keeps that of one architecture, and erases the rest.
//!
//! The section `.nv_fatbin` holds fat binaries, one after another, at multiples of 8 bytes. A fat
//! binary is a header (magic number, version, bytes of the header, bytes of the entries behind it)
//! and entries. An entry has a header of its own and a payload: machine code or PTX, mostly
//! compressed. Its header has kind, version, bytes of the header, bytes of the payload, and at byte
//! 28 the architecture, 90 for sm_90. All numbers are little-endian.
//!
//! The driver takes the entry that fits its GPU, by the headers. An erased payload of another
//! architecture is thus never read, and every offset of the library stays as it is.

use crate::Result;
use std::ops::Range;

/// First bytes of a fat binary.
const MAGIC: u32 = 0xba55_ed50;
/// Kind of an entry that has machine code.
const MACHINE_CODE: u16 = 2;
/// Section of relocatable code, which only linkers read.
const RELOCATABLE: &str = "__nv_relfatbin";
const EXECUTABLE: &str = ".nv_fatbin";

/// Bytes of payloads that were kept, and number of their entries.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) entries: usize,
    pub(crate) bytes: usize,
}

/// Erases the payloads of all entries but the machine code for this architecture, and all
/// relocatable code. `library` is a 64-bit ELF file.
pub(crate) fn keep_architecture(library: &mut [u8], architecture: u32) -> Result<Kept> {
    if let Some(section) = section(library, RELOCATABLE)? {
        library[section].fill(0);
    }
    let section = section(library, EXECUTABLE)?.ok_or("the library has no section .nv_fatbin")?;
    let (mut offset, mut kept) = (section.start, Kept::default());
    while offset < section.end {
        if number::<4>(library, offset)? != u64::from(MAGIC) {
            // Padding before the next fat binary.
            offset += 8;
            continue;
        }
        let (head, entries) =
            (number::<2>(library, offset + 6)? as usize, number::<8>(library, offset + 8)? as usize);
        let end = offset + head + entries;
        if head == 0 || end > section.end {
            return Err(format!("the fat binary at byte {offset} leaves its section"));
        }
        keep_entries(library, offset + head..end, architecture, &mut kept)?;
        offset = end;
    }
    Ok(kept)
}

fn keep_entries(library: &mut [u8], entries: Range<usize>, architecture: u32, kept: &mut Kept) -> Result {
    let mut offset = entries.start;
    while offset < entries.end {
        let kind = number::<2>(library, offset)? as u16;
        let (head, bytes) =
            (number::<4>(library, offset + 4)? as usize, number::<8>(library, offset + 8)? as usize);
        let entry_architecture = number::<4>(library, offset + 28)? as u32;
        let payload = offset + head..offset + head + bytes;
        if head == 0 || payload.end > entries.end {
            return Err(format!("the entry at byte {offset} leaves its fat binary"));
        }
        offset = payload.end;
        if kind == MACHINE_CODE && entry_architecture == architecture {
            kept.entries += 1;
            kept.bytes += bytes;
        } else {
            library[payload].fill(0);
        }
    }
    Ok(())
}

/// Returns the place of a section in the file.
fn section(library: &[u8], name: &str) -> Result<Option<Range<usize>>> {
    if !library.starts_with(b"\x7fELF\x02") {
        return Err("the library is no 64-bit ELF file".to_owned());
    }
    let (table, entry) = (number::<8>(library, 0x28)? as usize, number::<2>(library, 0x3a)? as usize);
    let (count, names) = (number::<2>(library, 0x3c)? as usize, number::<2>(library, 0x3e)? as usize);
    let head = |index: usize| table + index * entry;
    let place = |index: usize| -> Result<Range<usize>> {
        let start = number::<8>(library, head(index) + 0x18)? as usize;
        Ok(start..start + number::<8>(library, head(index) + 0x20)? as usize)
    };
    let names = library.get(place(names)?).ok_or("the names of sections are outside of the file")?;
    for index in 0..count {
        let text = names.get(number::<4>(library, head(index))? as usize..).unwrap_or_default();
        if text.strip_prefix(name.as_bytes()).is_some_and(|tail| tail.first() == Some(&0)) {
            let place = place(index)?;
            return match place.end <= library.len() {
                true => Ok(Some(place)),
                false => Err(format!("section {name} is outside of the file")),
            };
        }
    }
    Ok(None)
}

/// Reads a number of `N` bytes.
fn number<const N: usize>(bytes: &[u8], offset: usize) -> Result<u64> {
    let found = bytes
        .get(offset..offset + N)
        .ok_or_else(|| format!("the library ends before byte {}", offset + N))?;
    Ok(found.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry whose payload consists of its architecture's number.
    fn entry(kind: u16, architecture: u8, bytes: usize) -> Vec<u8> {
        let mut entry = vec![0; 64];
        entry[..2].copy_from_slice(&kind.to_le_bytes());
        entry[4] = 64;
        entry[8..16].copy_from_slice(&(bytes as u64).to_le_bytes());
        entry[28] = architecture;
        entry.resize(64 + bytes, architecture);
        entry
    }

    fn fat_binary(entries: &[Vec<u8>]) -> Vec<u8> {
        let entries = entries.concat();
        let mut fat = MAGIC.to_le_bytes().to_vec();
        fat.extend([1, 0, 16, 0]);
        fat.extend((entries.len() as u64).to_le_bytes());
        fat.extend(entries);
        fat
    }

    /// A file with these sections, and one with their names.
    fn library(sections: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let mut file = b"\x7fELF\x02".to_vec();
        file.resize(0x40, 0);
        let (mut table, mut names) = (Vec::new(), vec![0]);
        let mut add = |file: &mut Vec<u8>, name: u32, content: &[u8]| {
            let mut head = vec![0; 0x40];
            head[..4].copy_from_slice(&name.to_le_bytes());
            head[0x18..0x20].copy_from_slice(&(file.len() as u64).to_le_bytes());
            head[0x20..0x28].copy_from_slice(&(content.len() as u64).to_le_bytes());
            file.extend(content);
            table.extend(head);
        };
        for (name, content) in sections {
            add(&mut file, names.len() as u32, content);
            names.extend(name.bytes().chain([0]));
        }
        add(&mut file, 0, &names);
        let start = file.len() as u64;
        file[0x28..0x30].copy_from_slice(&start.to_le_bytes());
        file[0x3a] = 0x40;
        file[0x3c] = sections.len() as u8 + 1;
        file[0x3e] = sections.len() as u8;
        file.extend(table);
        file
    }

    #[test]
    fn other_architectures_and_relocatable_code_are_erased() {
        let fat = [
            fat_binary(&[entry(2, 80, 16), entry(2, 90, 24), entry(1, 90, 8)]),
            vec![0; 8],
            fat_binary(&[entry(2, 90, 8)]),
        ]
        .concat();
        let mut found =
            library(&[("__nv_relfatbin", vec![7; 8]), (".text", vec![9; 8]), (".nv_fatbin", fat)]);
        let original = found.clone();
        assert_eq!(keep_architecture(&mut found, 90), Ok(Kept { entries: 2, bytes: 32 }));
        assert_eq!(found.len(), original.len());
        let count = |bytes: &[u8], run: &[u8]| bytes.windows(run.len()).filter(|each| *each == run).count();
        assert_eq!((count(&original, &[80; 16]), count(&found, &[80; 16])), (1, 0));
        // The PTX for sm_90 is erased, and its machine code is not.
        assert_eq!((count(&original, &[90; 8]), count(&found, &[90; 8])), (17 + 1 + 1, 17 + 1));
        assert_eq!((count(&found, &[7; 8]), count(&found, &[9; 8])), (0, 1));
    }

    #[test]
    fn damaged_libraries_are_refused() {
        let intact = library(&[(".nv_fatbin", fat_binary(&[entry(2, 90, 16)]))]);
        let mut long = intact.clone();
        // The bytes of the entry's payload.
        long[0x40 + 16 + 8] = 255;
        for (mut damaged, reason) in [
            (b"text".to_vec(), "no 64-bit ELF"),
            (library(&[(".text", vec![0; 8])]), "no section .nv_fatbin"),
            (long, "leaves its fat binary"),
            (intact[..0x50].to_vec(), "the library ends"),
        ] {
            let error = keep_architecture(&mut damaged, 90).expect_err(reason);
            assert!(error.contains(reason), "{error}");
        }
    }
}
